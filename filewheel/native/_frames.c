/* Read many frames at once: a busy journal has mostly frames of one message.
 *
 * It reads plain frames: those that are complete in a block and verify. It stops at the first other one, and frame.py
 * examines that. So nothing here decides about damage.
 * Invariant: `Scanner._read` would return the same frames.
 */
#include "_loops.h"

#define FIELDS 9
#define BODY_BYTES_MAX ((uint64_t)1 << 28)

static PyObject *frame_type;
static Py_ssize_t slot_at[FIELDS];

/* learn_frame(Frame): finds the slots of a Frame. */
PyObject *learn_frame(PyObject *self, PyObject *frame)
{
    static const char *const names[FIELDS] = {
        "offset", "end", "number", "synced", "puts", "drops", "first", "last", "body"};
    if (!PyType_Check(frame))
        return PyErr_Format(PyExc_TypeError, "learn_frame(Frame)");
    if (find_slots(frame, names, FIELDS, slot_at) < 0)
        return NULL;
    Py_XSETREF(frame_type, Py_NewRef(frame));
    Py_RETURN_NONE;
}

static PyObject *make(const unsigned char *head, uint64_t size, uint64_t offset, uint64_t end)
{
    PyTypeObject *type = (PyTypeObject *)frame_type;
    PyObject *frame = type->tp_alloc(type, 0);
    PyObject *parts[FIELDS] = {
        PyLong_FromUnsignedLongLong(offset),
        PyLong_FromUnsignedLongLong(end),
        PyLong_FromUnsignedLongLong(load_le(head + 16, 8)),
        PyLong_FromUnsignedLongLong(load_le(head + 24, 8)),
        PyLong_FromUnsignedLongLong(load_le(head + 32, 4)),
        PyLong_FromUnsignedLongLong(load_le(head + 36, 4)),
        PyBytes_FromStringAndSize((const char *)head + 40, ID_BYTES),
        PyBytes_FromStringAndSize((const char *)head + 56, ID_BYTES),
        PyBytes_FromStringAndSize((const char *)head + HEADER_BYTES, (Py_ssize_t)size),
    };
    int whole = frame != NULL;
    for (int i = 0; i < FIELDS; i++)
        whole = whole && parts[i] != NULL;
    for (int i = 0; i < FIELDS; i++) {
        if (whole)
            *(PyObject **)((char *)frame + slot_at[i]) = parts[i];
        else
            Py_XDECREF(parts[i]);
    }
    if (!whole) {
        Py_XDECREF(frame);
        return NULL;
    }
    untrack(frame);
    return frame;
}

/* read_frames(block, at, offset, end, seed, lo, hi, most) -> (frames, the offset after the last)
 *
 * `at` is an offset in the block, and `offset` the same place in the file. Returns at most `most` frames, all before
 * `end`; skips frames without an id from `lo` to below `hi` (None: any).
 */
PyObject *read_frames(PyObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    if (nargs != 8 || !PyBytes_Check(args[0]) || frame_type == NULL)
        return PyErr_Format(PyExc_TypeError, "read_frames(block, at, offset, end, seed, lo, hi, most)");
    const unsigned char *bounds[2] = {NULL, NULL};
    for (int i = 0; i < 2; i++) {
        PyObject *id = args[5 + i];
        if (id == Py_None)
            continue;
        if (!PyBytes_Check(id) || PyBytes_GET_SIZE(id) != ID_BYTES)
            return PyErr_Format(PyExc_TypeError, "an id is 16 bytes");
        bounds[i] = (unsigned char *)PyBytes_AS_STRING(id);
    }
    Py_ssize_t at = PyLong_AsSsize_t(args[1]), most = PyLong_AsSsize_t(args[7]);
    uint64_t offset = PyLong_AsUnsignedLongLong(args[2]), end = PyLong_AsUnsignedLongLong(args[3]);
    uint32_t seed = (uint32_t)PyLong_AsUnsignedLongMask(args[4]);
    if (PyErr_Occurred())
        return NULL;
    const unsigned char *block = (unsigned char *)PyBytes_AS_STRING(args[0]);
    Py_ssize_t size = PyBytes_GET_SIZE(args[0]);
    PyObject *frames = PyList_New(0);
    while (frames != NULL && PyList_GET_SIZE(frames) < most && at >= 0 && size - at >= HEADER_BYTES) {
        const unsigned char *head = block + at;
        if (memcmp(head, "\xf5" "FW1", 4) != 0 ||
            crc_of(head + 8, HEADER_BYTES - 8, seed ^ (uint32_t)(offset >> 3)) != load_le(head + 4, 4))
            break;
        uint64_t body = load_le(head + 8, 4), whole = HEADER_BYTES + body, padded = whole + (-whole & 7);
        if (body > BODY_BYTES_MAX || whole > (uint64_t)(size - at) || offset + whole > end)
            break;
        int wanted = (bounds[0] == NULL || memcmp(head + 56, bounds[0], ID_BYTES) >= 0) &&
                     (bounds[1] == NULL || memcmp(head + 40, bounds[1], ID_BYTES) < 0);
        if (wanted) {
            if (crc_of(head + HEADER_BYTES, (Py_ssize_t)body, seed) != load_le(head + 12, 4))
                break;
            PyObject *frame = make(head, body, offset, offset + padded);
            if (frame == NULL || PyList_Append(frames, frame) < 0)
                Py_CLEAR(frames);
            Py_XDECREF(frame);
        }
        offset += padded;
        at = padded > (uint64_t)(size - at) ? size : at + (Py_ssize_t)padded;
    }
    if (frames == NULL)
        return NULL;
    return Py_BuildValue("NK", frames, (unsigned long long)offset);
}
