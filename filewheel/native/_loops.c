/* The inner loops of loops.py in C: optional, and the same to the byte.
 *
 * Optional: built if there is a compiler. tests/native/test_loops.py compares each function with its Python version. Nothing
 * here knows files, locks or the protocol: bytes in, bytes out, in the formats of docs/format.md.
 * Invariant: even hostile input never causes a read outside its buffer; a function returns difficult cases to the caller
 * (None, or ValueError with the reason).
 */
#include "_loops.h"

#include <structmember.h>

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <unistd.h>

#define INTERFACE 12 /* as in loops.py: a build with another number is not used */

static PyObject *message_type, *id_type;

/* -- ids --------------------------------------------------------------------------------------------------- */

PyObject *new_id(const unsigned char *p)
{
    PyTypeObject *type = (PyTypeObject *)id_type; /* a subclass of bytes without anything added */
    PyObject *id = type->tp_alloc(type, ID_BYTES);
    if (id != NULL) {
        memcpy(PyBytes_AS_STRING(id), p, ID_BYTES);
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
        ((PyBytesObject *)id)->ob_shash = -1; /* not hashed yet, as after bytes.__new__ */
#pragma GCC diagnostic pop
        untrack(id);
    }
    return id;
}

/* -- dues --------------------------------------------------------------------------------------------------- */

/* Microseconds, rounded up, except for the float's own rounding error (timespec._exact_us). */
static int exact_us(double seconds, int64_t *out)
{
    double us = seconds * 1e6;
    if (!(fabs(us) < 0x1p53))
        return 0;
    double nearest = rint(us);
    *out = (int64_t)(fabs(us - nearest) <= fabs(us) * 0x1p-52 ? nearest : ceil(us));
    return 1;
}

/* Return 1 and a valid due, 0 if the caller must check it. */
static int plain_due(int64_t base, PyObject *seconds, int64_t end, int64_t *out)
{
    int64_t us;
    if (PyFloat_CheckExact(seconds)) {
        if (!exact_us(PyFloat_AS_DOUBLE(seconds), &us))
            return 0;
    } else if (PyLong_CheckExact(seconds)) {
        int overflow;
        int64_t s = PyLong_AsLongLongAndOverflow(seconds, &overflow);
        if (overflow || s > end / 1000000 || s < -end / 1000000)
            return 0;
        us = s * 1000000;
    } else
        return 0;
    if (us > end || us < -end || (us += base) < 0 || us >= end)
        return 0;
    *out = us;
    return 1;
}

static PyObject *due_at(PyObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    if (nargs != 3)
        return PyErr_Format(PyExc_TypeError, "due_at(base_us, seconds, end_us)");
    int64_t base = PyLong_AsLongLong(args[0]), end = PyLong_AsLongLong(args[2]), us = -1;
    if (PyErr_Occurred())
        return NULL;
    return PyLong_FromLongLong(plain_due(base, args[1], end, &us) ? us : -1);
}

static PyObject *due_column(PyObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    if (nargs != 3)
        return PyErr_Format(PyExc_TypeError, "due_column(base_us, seconds, end_us)");
    int64_t base = PyLong_AsLongLong(args[0]), end = PyLong_AsLongLong(args[2]);
    if (PyErr_Occurred())
        return NULL;
    PyObject *seq = args[1];
    if (!PyList_CheckExact(seq) && !PyTuple_CheckExact(seq))
        Py_RETURN_NONE;
    Py_ssize_t count = PySequence_Fast_GET_SIZE(seq);
    PyObject *out = PyList_New(count);
    if (out == NULL)
        return NULL;
    for (Py_ssize_t i = 0; i < count; i++) {
        int64_t us;
        if (!plain_due(base, PySequence_Fast_GET_ITEM(seq, i), end, &us))
            goto leave;
        PyObject *due = PyLong_FromLongLong(us);
        if (due == NULL) {
            Py_DECREF(out);
            return NULL;
        }
        PyList_SET_ITEM(out, i, due);
    }
    return out;
leave: /* the caller checks them one by one, and names the bad one */
    Py_DECREF(out);
    Py_RETURN_NONE;
}

/* -- packing ------------------------------------------------------------------------------------------------ */

static Py_ssize_t bin_head(unsigned char *p, Py_ssize_t size)
{
    if (size < 256) {
        p[0] = 0xc4;
        p[1] = (unsigned char)size;
        return 2;
    }
    if (size < 65536) {
        p[0] = 0xc5;
        p[1] = (unsigned char)(size >> 8);
        p[2] = (unsigned char)size;
        return 3;
    }
    p[0] = 0xc6;
    for (int i = 0; i < 4; i++)
        p[1 + i] = (unsigned char)((uint64_t)size >> (24 - 8 * i));
    return 5;
}

/* size_of(payloads, limit) -> their total size; -1 when one is not bytes, or longer than the limit */
static PyObject *size_of(PyObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    if (nargs != 2 || (!PyList_CheckExact(args[0]) && !PyTuple_CheckExact(args[0])))
        return PyErr_Format(PyExc_TypeError, "size_of(list or tuple, limit)");
    Py_ssize_t limit = PyLong_AsSsize_t(args[1]), count = PySequence_Fast_GET_SIZE(args[0]), size = 0;
    if (PyErr_Occurred())
        return NULL;
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *payload = PySequence_Fast_GET_ITEM(args[0], i);
        if (!PyBytes_CheckExact(payload) || PyBytes_GET_SIZE(payload) > limit)
            return PyLong_FromLong(-1);
        size += PyBytes_GET_SIZE(payload);
    }
    return PyLong_FromSsize_t(size);
}

/* pack_puts(low, seq, dues_us, middle, payloads) -> (body, ids). The caller has checked types and lengths of the lists. */
static PyObject *pack_puts(PyObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    if (nargs != 5 || !PyBytes_Check(args[0]) || PyBytes_GET_SIZE(args[0]) != ID_BYTES)
        return PyErr_Format(PyExc_TypeError, "pack_puts(low, seq, dues_us, middle, payloads)");
    const unsigned char *low = (unsigned char *)PyBytes_AS_STRING(args[0]);
    uint64_t low_hi = load_be64(low), low_lo = load_be64(low + 8) | PyLong_AsUnsignedLong(args[1]);
    if (PyErr_Occurred())
        return NULL;
    PyObject *dues = NULL, *middles = NULL, *payloads = NULL, *body = NULL, *ids = NULL, *result = NULL;
    int same = PyBytes_CheckExact(args[3]);
    dues = PySequence_Fast(args[2], "dues");
    payloads = PySequence_Fast(args[4], "payloads");
    if (dues == NULL || payloads == NULL)
        goto done;
    if (!same && (middles = PySequence_Fast(args[3], "middles")) == NULL)
        goto done;
    Py_ssize_t count = PySequence_Fast_GET_SIZE(payloads), size = 0;
    if (PySequence_Fast_GET_SIZE(dues) != count || (!same && PySequence_Fast_GET_SIZE(middles) != count)) {
        PyErr_SetString(PyExc_ValueError, "columns of different lengths");
        goto done;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *payload = PySequence_Fast_GET_ITEM(payloads, i);
        PyObject *middle = same ? args[3] : PySequence_Fast_GET_ITEM(middles, i);
        if (!PyBytes_Check(payload) || !PyBytes_Check(middle) || PyBytes_GET_SIZE(payload) > UINT32_MAX) {
            PyErr_SetString(PyExc_TypeError, "a payload or a middle is not bytes");
            goto done;
        }
        size += PUT_HEAD + PyBytes_GET_SIZE(middle) + bin_size(PyBytes_GET_SIZE(payload));
    }
    body = PyBytes_FromStringAndSize(NULL, size);
    ids = PyBytes_FromStringAndSize(NULL, count * ID_BYTES);
    if (body == NULL || ids == NULL)
        goto done;
    unsigned char *p = (unsigned char *)PyBytes_AS_STRING(body), *id = (unsigned char *)PyBytes_AS_STRING(ids);
    unsigned char first[ID_BYTES], last[ID_BYTES];
    uint64_t least = UINT64_MAX, most = 0;
    memset(first, 0xff, ID_BYTES);
    memset(last, 0, ID_BYTES);
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *payload = PySequence_Fast_GET_ITEM(payloads, i);
        PyObject *middle = same ? args[3] : PySequence_Fast_GET_ITEM(middles, i);
        int64_t due = PyLong_AsLongLong(PySequence_Fast_GET_ITEM(dues, i));
        if (due == -1 && PyErr_Occurred())
            goto done;
        uint64_t high = (uint64_t)due << 6 | low_hi;
        memcpy(p, PUT_PREFIX, 4);
        store_be64(p + 4, high);
        store_be64(p + 12, low_lo + (uint64_t)i);
        memcpy(id, p + ID_AT, ID_BYTES);
        /* Ids of one due ascend. */
        if (i == 0 || high < least) {
            least = high;
            memcpy(first, id, ID_BYTES);
        }
        if (i == 0 || high >= most) {
            most = high;
            memcpy(last, id, ID_BYTES);
        }
        id += ID_BYTES;
        p += PUT_HEAD;
        memcpy(p, PyBytes_AS_STRING(middle), PyBytes_GET_SIZE(middle));
        p += PyBytes_GET_SIZE(middle);
        p += bin_head(p, PyBytes_GET_SIZE(payload));
        memcpy(p, PyBytes_AS_STRING(payload), PyBytes_GET_SIZE(payload));
        p += PyBytes_GET_SIZE(payload);
    }
    result = Py_BuildValue("OOy#y#", body, ids, first, (Py_ssize_t)ID_BYTES, last, (Py_ssize_t)ID_BYTES);
done:
    Py_XDECREF(dues);
    Py_XDECREF(middles);
    Py_XDECREF(payloads);
    Py_XDECREF(body);
    Py_XDECREF(ids);
    return result;
}

/* pack_drops(ids, reason) -> body */
static PyObject *pack_drops(PyObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    if (nargs != 2 || !PyList_CheckExact(args[0]))
        return PyErr_Format(PyExc_TypeError, "pack_drops(ids, reason)");
    long reason = PyLong_AsLong(args[1]);
    if (PyErr_Occurred())
        return NULL;
    Py_ssize_t count = PyList_GET_SIZE(args[0]);
    PyObject *body = PyBytes_FromStringAndSize(NULL, count * DROP_BYTES);
    if (body == NULL)
        return NULL;
    unsigned char *p = (unsigned char *)PyBytes_AS_STRING(body);
    for (Py_ssize_t i = 0; i < count; i++, p += DROP_BYTES) {
        PyObject *id = PyList_GET_ITEM(args[0], i);
        if (!PyBytes_Check(id) || PyBytes_GET_SIZE(id) != ID_BYTES) {
            Py_DECREF(body);
            return PyErr_Format(PyExc_ValueError, "an id is 16 bytes");
        }
        memcpy(p, DROP_PREFIX, 4);
        memcpy(p + ID_AT, PyBytes_AS_STRING(id), ID_BYTES);
        p[20] = (unsigned char)reason;
    }
    return body;
}

/* n: -, seed, offset, number, synced, puts, drops */
void write_header(
    unsigned char *p, Py_ssize_t size, uint32_t sum, const uint64_t n[7], const unsigned char *first,
    const unsigned char *last)
{
    memcpy(p, "\xf5" "FW1", 4);
    store_le(p + 8, (uint64_t)size, 4);
    store_le(p + 12, sum, 4);
    store_le(p + 16, n[3], 8);
    store_le(p + 24, n[4], 8);
    store_le(p + 32, n[5], 4);
    store_le(p + 36, n[6], 4);
    memcpy(p + 40, first, ID_BYTES);
    memcpy(p + 56, last, ID_BYTES);
    store_le(p + 4, crc_of(p + 8, HEADER_BYTES - 8, (uint32_t)n[1] ^ (uint32_t)(n[2] >> 3)), 4);
}

/* seal_frame(body, seed, offset, number, synced, puts, drops, first, last) -> frame */
static PyObject *seal_frame(PyObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    if (nargs != 9 || !PyBytes_Check(args[0]) || !PyBytes_Check(args[7]) || !PyBytes_Check(args[8]) ||
        PyBytes_GET_SIZE(args[7]) != ID_BYTES || PyBytes_GET_SIZE(args[8]) != ID_BYTES)
        return PyErr_Format(PyExc_TypeError, "seal_frame(body, seed, offset, number, synced, puts, drops, first, last)");
    uint64_t n[7];
    for (int i = 1; i < 7; i++)
        n[i] = PyLong_AsUnsignedLongLong(args[i]);
    if (PyErr_Occurred())
        return NULL;
    Py_ssize_t size = PyBytes_GET_SIZE(args[0]), pad = -size & 7;
    uint32_t sum = crc_of((unsigned char *)PyBytes_AS_STRING(args[0]), size, (uint32_t)n[1]);
    PyObject *frame = PyBytes_FromStringAndSize(NULL, HEADER_BYTES + size + pad);
    if (frame == NULL)
        return NULL;
    unsigned char *p = (unsigned char *)PyBytes_AS_STRING(frame);
    write_header(p, size, sum, n, (unsigned char *)PyBytes_AS_STRING(args[7]), (unsigned char *)PyBytes_AS_STRING(args[8]));
    memcpy(p + HEADER_BYTES, PyBytes_AS_STRING(args[0]), size);
    memset(p + HEADER_BYTES + size, 0, pad);
    return frame;
}

/* Read (low, seq, due_us, enqueued_us, tail, payload, seed, offset, number, synced). */
static int read_put(PyObject *const *args, OnePut *put)
{
    if (!PyBytes_Check(args[0]) || PyBytes_GET_SIZE(args[0]) != ID_BYTES || !PyBytes_Check(args[4]) ||
        !PyBytes_Check(args[5]) || id_type == NULL) {
        PyErr_SetString(PyExc_TypeError, "(low, seq, due_us, enqueued_us, tail, payload, seed, offset, number, synced)");
        return -1;
    }
    *put = (OnePut){
        PyLong_AsUnsignedLongLong(args[1]), PyLong_AsUnsignedLongLong(args[2]), PyLong_AsUnsignedLongLong(args[3]),
        {0, 0, 0, 0, 0, 1, 0}, (unsigned char *)PyBytes_AS_STRING(args[0]), args[4], args[5], 0,
    };
    for (int i = 1; i < 5; i++)
        put->n[i] = PyLong_AsUnsignedLongLong(args[5 + i]);
    put->size = PUT_HEAD + 10 + PyBytes_GET_SIZE(args[4]) + bin_size(PyBytes_GET_SIZE(args[5]));
    return PyErr_Occurred() ? -1 : 0;
}

void id_bytes(const OnePut *put, unsigned char *p)
{
    store_be64(p, put->due << 6 | load_be64(put->low));
    store_be64(p + 8, load_be64(put->low + 8) | put->seq);
}

Py_ssize_t frame_size(const OnePut *put)
{
    return HEADER_BYTES + put->size + (-put->size & 7);
}

void lay_put(const OnePut *put, unsigned char *head)
{
    unsigned char *body = head + HEADER_BYTES, *p = body;
    Py_ssize_t tail = PyBytes_GET_SIZE(put->tail), payload = PyBytes_GET_SIZE(put->payload);
    memcpy(p, PUT_PREFIX, 4);
    id_bytes(put, p + ID_AT);
    p[20] = 0xc0;
    p[21] = 0xcf;
    store_be64(p + 22, put->enqueued);
    p += PUT_HEAD + 10;
    memcpy(p, PyBytes_AS_STRING(put->tail), tail);
    p += tail;
    p += bin_head(p, payload);
    memcpy(p, PyBytes_AS_STRING(put->payload), payload);
    memset(p + payload, 0, -put->size & 7);
    write_header(head, put->size, crc_of(body, put->size, (uint32_t)put->n[1]), put->n, body + ID_AT, body + ID_AT);
}

/* put_frame(low, seq, due_us, enqueued_us, tail, payload, seed, offset, number, synced) -> (frame, id) */
static PyObject *put_frame(PyObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    OnePut put;
    if (nargs != 10)
        return PyErr_Format(PyExc_TypeError, "put_frame takes 10 arguments");
    if (read_put(args, &put) < 0)
        return NULL;
    PyObject *frame = PyBytes_FromStringAndSize(NULL, frame_size(&put));
    if (frame == NULL)
        return NULL;
    unsigned char *head = (unsigned char *)PyBytes_AS_STRING(frame);
    lay_put(&put, head);
    PyObject *made = new_id(head + HEADER_BYTES + ID_AT);
    PyObject *result = made == NULL ? NULL : PyTuple_Pack(2, frame, made);
    Py_XDECREF(made);
    Py_DECREF(frame);
    return result;
}

/* crc32(data, seed): as zlib.crc32 */
static PyObject *crc32(PyObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    if (nargs != 2 || !PyBytes_Check(args[0]))
        return PyErr_Format(PyExc_TypeError, "crc32(bytes, seed)");
    unsigned long seed = PyLong_AsUnsignedLong(args[1]);
    if (PyErr_Occurred())
        return NULL;
    return PyLong_FromUnsignedLong(
        crc_of((unsigned char *)PyBytes_AS_STRING(args[0]), PyBytes_GET_SIZE(args[0]), (uint32_t)seed));
}

/* -- taking apart ------------------------------------------------------------------------------------------- */

/* Return the end of the msgpack value at `p`, NULL when it is invalid or does not end before `end`. */
const unsigned char *skip_value(const unsigned char *p, const unsigned char *end)
{
    uint64_t left = 1;
    while (left) {
        if (p >= end)
            return NULL;
        unsigned char c = *p++;
        uint64_t bytes = 0;
        int lead = 0; /* bytes of the length field */
        left--;
        if (c <= 0x7f || c >= 0xe0 || c == 0xc0 || c == 0xc2 || c == 0xc3)
            continue;
        if (c <= 0x8f)
            left += 2 * (uint64_t)(c & 15);
        else if (c <= 0x9f)
            left += c & 15;
        else if (c <= 0xbf)
            bytes = c & 31;
        else if (c >= 0xca && c <= 0xd3)
            bytes = c == 0xca ? 4 : c == 0xcb ? 8 : (uint64_t)1 << (c & 3);
        else if (c >= 0xd4 && c <= 0xd8)
            bytes = 1 + ((uint64_t)1 << (c - 0xd4));
        else if (c >= 0xc4 && c <= 0xc9)
            lead = 1 << ((c - 0xc4) % 3);
        else if (c >= 0xd9 && c <= 0xdb)
            lead = 1 << (c - 0xd9);
        else if (c >= 0xdc) /* array 16, 32, map 16, 32 */
            lead = c & 1 ? 4 : 2;
        else
            return NULL; /* 0xc1 */
        if (lead) {
            uint64_t length = 0;
            if (end - p < lead)
                return NULL;
            for (int i = 0; i < lead; i++)
                length = length << 8 | *p++;
            if (c == 0xdc || c == 0xdd)
                left += length;
            else if (c == 0xde || c == 0xdf)
                left += 2 * length;
            else
                bytes = length + (c >= 0xc7 && c <= 0xc9);
        }
        if ((uint64_t)(end - p) < bytes || left > (uint64_t)(end - p) - bytes)
            return NULL; /* every value has at least one byte */
        p += bytes;
    }
    return p;
}

/* part(body, first, last) -> (puts, drops). ValueError has the reason. */
static PyObject *part(PyObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    if (nargs != 3 || !PyBytes_Check(args[0]) || !PyBytes_Check(args[1]) || !PyBytes_Check(args[2]) ||
        PyBytes_GET_SIZE(args[1]) != ID_BYTES || PyBytes_GET_SIZE(args[2]) != ID_BYTES)
        return PyErr_Format(PyExc_TypeError, "part(body, first, last)");
    const unsigned char *start = (unsigned char *)PyBytes_AS_STRING(args[0]), *p = start;
    const unsigned char *end = p + PyBytes_GET_SIZE(args[0]);
    const char *first = PyBytes_AS_STRING(args[1]), *last = PyBytes_AS_STRING(args[2]);
    int strange = 0, outside = 0;
    PyObject *puts = PyList_New(0), *drops = PyList_New(0), *result = NULL;
    if (puts == NULL || drops == NULL)
        goto done;
    while (p < end) {
        const unsigned char *next = skip_value(p, end);
        if (next == NULL) {
            PyErr_Format(PyExc_ValueError, "not a run of records after byte %zd of a frame", (Py_ssize_t)(p - start));
            goto done;
        }
        PyObject *kind = NULL;
        if (next - p >= DROP_BYTES) {
            if (memcmp(p, PUT_PREFIX, 4) == 0)
                kind = puts;
            else if (next - p == DROP_BYTES && memcmp(p, DROP_PREFIX, 4) == 0)
                kind = drops;
        }
        if (kind == NULL)
            strange = 1; /* reported at the end: an error in the run of values comes first */
        else {
            if (memcmp(p + ID_AT, first, ID_BYTES) < 0 || memcmp(p + ID_AT, last, ID_BYTES) > 0)
                outside = 1;
            PyObject *record = PyBytes_FromStringAndSize((const char *)p, next - p);
            if (record == NULL)
                goto done;
            int failed = PyList_Append(kind, record);
            Py_DECREF(record);
            if (failed)
                goto done;
        }
        p = next;
    }
    if (strange)
        PyErr_SetString(PyExc_ValueError, "a frame holds a record of an unknown kind");
    else if (outside)
        PyErr_SetString(PyExc_ValueError, "the header does not fit the records");
    else
        result = PyTuple_Pack(2, puts, drops);
done:
    Py_XDECREF(puts);
    Py_XDECREF(drops);
    return result;
}

/* ids_of(records) -> list */
static PyObject *ids_of(PyObject *self, PyObject *records)
{
    if (!PyList_CheckExact(records))
        return PyErr_Format(PyExc_TypeError, "ids_of(list)");
    Py_ssize_t count = PyList_GET_SIZE(records);
    PyObject *ids = PyList_New(count);
    for (Py_ssize_t i = 0; ids != NULL && i < count; i++) {
        PyObject *record = PyList_GET_ITEM(records, i);
        PyObject *id = NULL;
        if (PyBytes_Check(record) && PyBytes_GET_SIZE(record) >= PUT_HEAD)
            id = PyBytes_FromStringAndSize(PyBytes_AS_STRING(record) + ID_AT, ID_BYTES);
        else
            PyErr_SetString(PyExc_ValueError, "a record is too short for an id");
        if (id == NULL)
            Py_CLEAR(ids);
        else
            PyList_SET_ITEM(ids, i, id);
    }
    return ids;
}

/* moved(puts) -> list */
static PyObject *moved(PyObject *self, PyObject *puts)
{
    if (!PyList_CheckExact(puts))
        return PyErr_Format(PyExc_TypeError, "moved(list)");
    PyObject *out = PyList_New(0);
    for (Py_ssize_t i = 0; out != NULL && i < PyList_GET_SIZE(puts); i++) {
        PyObject *put = PyList_GET_ITEM(puts, i);
        if (!PyBytes_Check(put) || PyBytes_GET_SIZE(put) <= PUT_HEAD) {
            Py_DECREF(out);
            return PyErr_Format(PyExc_IndexError, "a record is too short for a put");
        }
        if ((unsigned char)PyBytes_AS_STRING(put)[PUT_HEAD] != 0xc0 && PyList_Append(out, put) < 0)
            Py_CLEAR(out);
    }
    return out;
}

/* -- sorting ------------------------------------------------------------------------------------------------ */

int by_key(const void *a, const void *b)
{
    const Keyed *x = a, *y = b;
    if (x->high != y->high)
        return x->high < y->high ? -1 : 1;
    if (x->low != y->low)
        return x->low < y->low ? -1 : 1;
    int c = memcmp(x->record, y->record, x->size < y->size ? x->size : y->size);
    return c ? c : (x->size > y->size) - (x->size < y->size);
}

/* Sort by the high halves, one differing byte at a time: dues share most of their bytes. */
void radix(Keyed *from, Keyed *to, Py_ssize_t count)
{
    Keyed *a = from, *b = to;
    uint64_t differ = 0;
    for (Py_ssize_t i = 1; i < count; i++)
        differ |= a[i].high ^ a[0].high;
    for (int shift = 0; shift < 64; shift += 8) {
        if (!(differ >> shift & 255))
            continue;
        Py_ssize_t at[257] = {0};
        for (Py_ssize_t i = 0; i < count; i++)
            at[(a[i].high >> shift & 255) + 1]++;
        for (int i = 0; i < 256; i++)
            at[i + 1] += at[i];
        for (Py_ssize_t i = 0; i < count; i++)
            b[at[a[i].high >> shift & 255]++] = a[i];
        Keyed *t = a;
        a = b;
        b = t;
    }
    if (a != from)
        memcpy(from, a, count * sizeof(Keyed));
    for (Py_ssize_t i = 0, j; i < count; i = j) { /* equal high halves: nearly always one */
        for (j = i + 1; j < count && from[j].high == from[i].high; j++)
            ;
        if (j - i > 1)
            qsort(from + i, j - i, sizeof(Keyed), by_key);
    }
}

/* sort(records): in place, as list.sort(). If the first bytes differ or an id is missing, list.sort() does it. */
static PyObject *sort_records(PyObject *self, PyObject *records)
{
    if (!PyList_CheckExact(records))
        return PyErr_Format(PyExc_TypeError, "sort(list)");
    Py_ssize_t count = PyList_GET_SIZE(records);
    Keyed *keyed = NULL;
    if (count < 2)
        Py_RETURN_NONE;
    int sorted = 1;
    const unsigned char *head = NULL;
    keyed = PyMem_Malloc(2 * count * sizeof(Keyed));
    if (keyed == NULL)
        return PyErr_NoMemory();
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *record = PyList_GET_ITEM(records, i);
        if (!PyBytes_CheckExact(record) || PyBytes_GET_SIZE(record) < PUT_HEAD)
            goto leave;
        const unsigned char *p = (unsigned char *)PyBytes_AS_STRING(record);
        if (head == NULL)
            head = p;
        else if (memcmp(head, p, ID_AT) != 0)
            goto leave;
        keyed[i] = (Keyed){load_be64(p + 4), load_be64(p + 12), p, PyBytes_GET_SIZE(record)};
        if (sorted && i && by_key(&keyed[i - 1], &keyed[i]) > 0)
            sorted = 0;
    }
    if (!sorted) {
        radix(keyed, keyed + count, count);
        for (Py_ssize_t i = 0; i < count; i++) /* the same references in another order */
            PyList_SET_ITEM(records, i, (PyObject *)(keyed[i].record - offsetof(PyBytesObject, ob_sval)));
    }
    PyMem_Free(keyed);
    Py_RETURN_NONE;
leave:
    PyMem_Free(keyed);
    if (PyList_Sort(records) < 0)
        return NULL;
    Py_RETURN_NONE;
}

/* count_seconds(items, at) -> [(second, count)], for sorted items with a due at this offset. */
static PyObject *count_seconds(PyObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    if (nargs != 2 || !PyList_CheckExact(args[0]))
        return PyErr_Format(PyExc_TypeError, "count_seconds(list, at)");
    Py_ssize_t at = PyLong_AsSsize_t(args[1]), count = PyList_GET_SIZE(args[0]), run = 0;
    if (PyErr_Occurred())
        return NULL;
    PyObject *runs = PyList_New(0);
    uint64_t second = 0;
    for (Py_ssize_t i = 0; runs != NULL && i <= count; i++) {
        uint64_t now = 0;
        if (i < count) {
            PyObject *item = PyList_GET_ITEM(args[0], i);
            if (!PyBytes_Check(item) || at < 0 || PyBytes_GET_SIZE(item) < at + 8) {
                Py_DECREF(runs);
                return PyErr_Format(PyExc_ValueError, "an item is too short for a due");
            }
            now = (load_be64((unsigned char *)PyBytes_AS_STRING(item) + at) >> 6) / 1000000;
        }
        if (run && (i == count || now != second)) {
            PyObject *pair = Py_BuildValue("(Kn)", (unsigned long long)second, run);
            if (pair == NULL || PyList_Append(runs, pair) < 0)
                Py_CLEAR(runs);
            Py_XDECREF(pair);
            run = 0;
        }
        second = now;
        run++;
    }
    return runs;
}

/* -- messages ----------------------------------------------------------------------------------------------- */

static Py_ssize_t slot_at[7]; /* id, payload, topic, headers, attempt, enqueued_us, root */

int find_slots(PyObject *type, const char *const names[], int count, Py_ssize_t *offsets)
{
    for (int i = 0; i < count; i++) {
        PyObject *slot = PyObject_GetAttrString(type, names[i]);
        if (slot == NULL)
            return -1;
        PyMemberDef *member = Py_IS_TYPE(slot, &PyMemberDescr_Type) ? ((PyMemberDescrObject *)slot)->d_member : NULL;
        Py_DECREF(slot);
        if (member == NULL || member->type != T_OBJECT_EX) {
            PyErr_Format(PyExc_TypeError, "%s is not a slot", names[i]);
            return -1;
        }
        offsets[i] = member->offset;
    }
    return 0;
}

/* learn(Message, MessageId): finds the slots of a Message. */
static PyObject *learn(PyObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    static const char *names[7] = {"id", "payload", "topic", "headers", "attempt", "enqueued_us", "root"};
    if (nargs != 2 || !PyType_Check(args[0]) || !PyType_Check(args[1]))
        return PyErr_Format(PyExc_TypeError, "learn(Message, MessageId)");
    if (find_slots(args[0], names, 7, slot_at) < 0)
        return NULL;
    Py_XSETREF(message_type, Py_NewRef(args[0]));
    Py_XSETREF(id_type, Py_NewRef(args[1]));
    Py_RETURN_NONE;
}

/* Fields of the previous message: messages that fire together often have the same. */
typedef struct {
    PyObject *topic, *enqueued_us;
    unsigned char bytes[256]; /* the topic's; it is no longer */
    Py_ssize_t size;
    uint64_t us;
} Recent;

static PyObject *topic_of(const unsigned char *at, Py_ssize_t size, Recent *recent)
{
    if (recent->topic == NULL || recent->size != size || memcmp(recent->bytes, at, size) != 0) {
        Py_XSETREF(recent->topic, PyUnicode_DecodeUTF8((const char *)at, size, NULL));
        memcpy(recent->bytes, at, size);
        recent->size = size;
    }
    return Py_XNewRef(recent->topic);
}

static PyObject *us_of(uint64_t us, Recent *recent)
{
    if (recent->enqueued_us == NULL || recent->us != us) {
        Py_XSETREF(recent->enqueued_us, PyLong_FromUnsignedLongLong(us));
        recent->us = us;
    }
    return Py_XNewRef(recent->enqueued_us);
}

/* Make the Message of a put as filewheel writes it. NULL without an exception: `record.unpack_put` must do it. */
static PyObject *plain_message(PyObject *record, uint64_t limit, Recent *recent)
{
    const unsigned char *p = (unsigned char *)PyBytes_AS_STRING(record), *end = p + PyBytes_GET_SIZE(record);
    const unsigned char *id = p + ID_AT;
    /* prefix, id, nil, a uint 64, a small attempt, a short topic, no headers, the payload to the end */
    if (end - p < 34 || memcmp(p, PUT_PREFIX, 4) != 0 || load_be64(id) >= limit)
        return NULL;
    p += PUT_HEAD;
    if (p[0] != 0xc0 || p[1] != 0xcf || p[10] > 0x7f)
        return NULL;
    uint64_t enqueued_us = load_be64(p + 2);
    long attempt = p[10];
    p += 11;
    Py_ssize_t topic_size;
    if ((p[0] & 0xe0) == 0xa0) {
        topic_size = p[0] & 31;
        p += 1;
    } else if (p[0] == 0xd9) {
        topic_size = p[1];
        p += 2;
    } else
        return NULL;
    const unsigned char *topic_at = p;
    if (end - p < topic_size + 3)
        return NULL;
    p += topic_size;
    if (*p++ != 0x80)
        return NULL;
    int lead = p[0] == 0xc4 ? 1 : p[0] == 0xc5 ? 2 : p[0] == 0xc6 ? 4 : 0;
    if (!lead || end - p < 1 + lead)
        return NULL;
    uint64_t size = 0;
    for (int i = 0; i < lead; i++)
        size = size << 8 | p[1 + i];
    p += 1 + lead;
    if ((uint64_t)(end - p) != size)
        return NULL;

    PyTypeObject *type = (PyTypeObject *)message_type;
    PyObject *message = type->tp_alloc(type, 0);
    PyObject *parts[7] = {
        new_id(id), PyBytes_FromStringAndSize((const char *)p, (Py_ssize_t)size),
        topic_of(topic_at, topic_size, recent), PyDict_New(), PyLong_FromLong(attempt), us_of(enqueued_us, recent),
        Py_NewRef(Py_None),
    };
    int whole = message != NULL;
    for (int i = 0; i < 7; i++)
        whole = whole && parts[i] != NULL;
    for (int i = 0; i < 7; i++) {
        if (whole)
            *(PyObject **)((char *)message + slot_at[i]) = parts[i];
        else
            Py_XDECREF(parts[i]);
    }
    if (!whole) {
        Py_XDECREF(message);
        if (PyErr_ExceptionMatches(PyExc_UnicodeDecodeError))
            PyErr_Clear();
        return NULL;
    }
    untrack(parts[3]); /* from Python 3.14 on, an empty dict is tracked, too */
    untrack(message);
    return message;
}

/* plain_messages(puts, start, end, limit) -> (Messages, or None for `record.unpack_put`; whether there is no None) */
static PyObject *plain_messages(PyObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    if (nargs != 4 || !PyList_CheckExact(args[0]) || message_type == NULL)
        return PyErr_Format(PyExc_TypeError, "plain_messages(list, start, end, limit)");
    Py_ssize_t start = PyLong_AsSsize_t(args[1]), end = PyLong_AsSsize_t(args[2]);
    uint64_t limit = PyLong_AsUnsignedLongLong(args[3]);
    if (PyErr_Occurred())
        return NULL;
    if (end > PyList_GET_SIZE(args[0]))
        end = PyList_GET_SIZE(args[0]);
    if (start < 0 || start > end)
        start = end;
    Recent recent = {0};
    int whole = 1;
    PyObject *out = PyList_New(end - start), *result = NULL;
    for (Py_ssize_t i = start; out != NULL && i < end; i++) {
        PyObject *record = i < PyList_GET_SIZE(args[0]) ? PyList_GET_ITEM(args[0], i) : Py_None;
        PyObject *message = PyBytes_CheckExact(record) ? plain_message(record, limit, &recent) : NULL;
        if (message == NULL) {
            if (PyErr_Occurred())
                goto done;
            message = Py_NewRef(Py_None);
            whole = 0;
        }
        PyList_SET_ITEM(out, i - start, message);
    }
    if (out != NULL)
        result = PyTuple_Pack(2, out, whole ? Py_True : Py_False);
done:
    Py_XDECREF(out);
    Py_XDECREF(recent.topic);
    Py_XDECREF(recent.enqueued_us);
    return result;
}

/* -- writing ------------------------------------------------------------------------------------------------ */

/* write_all(fd, data, offset). A small write holds the interpreter's lock: it takes a microsecond into the page cache,
 * and a release would make all other threads compete for the lock. */
static PyObject *write_all(PyObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    if (nargs != 3 || !PyBytes_Check(args[1]))
        return PyErr_Format(PyExc_TypeError, "write_all(fd, bytes, offset)");
    int fd = (int)PyLong_AsLong(args[0]);
    long long offset = PyLong_AsLongLong(args[2]);
    if (PyErr_Occurred())
        return NULL;
    const char *data = PyBytes_AS_STRING(args[1]);
    Py_ssize_t size = PyBytes_GET_SIZE(args[1]);
    int held = size <= HELD_BYTES_MAX;
    while (size > 0) {
        ssize_t wrote;
        int error;
        if (held) {
            wrote = pwrite(fd, data, (size_t)size, (off_t)offset);
            error = errno;
        } else {
            Py_BEGIN_ALLOW_THREADS
            wrote = pwrite(fd, data, (size_t)size, (off_t)offset);
            error = errno;
            Py_END_ALLOW_THREADS
        }
        if (wrote < 0 && error == EINTR) {
            if (PyErr_CheckSignals() < 0)
                return NULL;
            continue;
        }
        if (wrote <= 0) {
            errno = wrote < 0 ? error : ENOSPC;
            return PyErr_SetFromErrno(PyExc_OSError);
        }
        data += wrote;
        offset += wrote;
        size -= wrote;
    }
    Py_RETURN_NONE;
}

/* -- module ------------------------------------------------------------------------------------------------- */

static PyMethodDef methods[] = {
    {"due_column", (PyCFunction)(void (*)(void))due_column, METH_FASTCALL, NULL},
    {"due_at", (PyCFunction)(void (*)(void))due_at, METH_FASTCALL, NULL},
    {"size_of", (PyCFunction)(void (*)(void))size_of, METH_FASTCALL, NULL},
    {"put_frame", (PyCFunction)(void (*)(void))put_frame, METH_FASTCALL, NULL},
    {"pack_puts", (PyCFunction)(void (*)(void))pack_puts, METH_FASTCALL, NULL},
    {"pack_drops", (PyCFunction)(void (*)(void))pack_drops, METH_FASTCALL, NULL},
    {"seal_frame", (PyCFunction)(void (*)(void))seal_frame, METH_FASTCALL, NULL},
    {"part", (PyCFunction)(void (*)(void))part, METH_FASTCALL, NULL},
    {"ids_of", ids_of, METH_O, NULL},
    {"moved", moved, METH_O, NULL},
    {"sort", sort_records, METH_O, NULL},
    {"count_seconds", (PyCFunction)(void (*)(void))count_seconds, METH_FASTCALL, NULL},
    {"learn", (PyCFunction)(void (*)(void))learn, METH_FASTCALL, NULL},
    {"plain_messages", (PyCFunction)(void (*)(void))plain_messages, METH_FASTCALL, NULL},
    {"crc32", (PyCFunction)(void (*)(void))crc32, METH_FASTCALL, NULL},
    {"learn_frame", learn_frame, METH_O, NULL},
    {"read_frames", (PyCFunction)(void (*)(void))read_frames, METH_FASTCALL, NULL},
    {"learn_outgoing", (PyCFunction)(void (*)(void))learn_outgoing, METH_FASTCALL, NULL},
    {"deliveries", (PyCFunction)(void (*)(void))deliveries, METH_FASTCALL, NULL},
    {"learn_record", learn_record, METH_O, NULL},
    {"learn_put", learn_put, METH_O, NULL},
    {"read_records", read_records, METH_O, NULL},
    {"records_size", records_size, METH_O, NULL},
    {"delayed_puts", (PyCFunction)(void (*)(void))delayed_puts, METH_FASTCALL, NULL},
    {"write_all", (PyCFunction)(void (*)(void))write_all, METH_FASTCALL, NULL},
    {"keep_from_children", keep_from_children, METH_O, NULL},
    {"let_children_have", let_children_have, METH_O, NULL},
    {"count_forks", count_forks, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_loops", NULL, -1, methods, NULL, NULL, NULL, NULL};

static int add_type(PyObject *to, const char *name, PyType_Spec *spec)
{
    PyObject *type = PyType_FromSpec(spec);
    int failed = PyModule_AddObjectRef(to, name, type);
    Py_XDECREF(type);
    return failed;
}

PyMODINIT_FUNC PyInit__loops(void)
{
    crc_init();
    PyObject *made = PyModule_Create(&module);
    if (made != NULL && (add_type(made, "PutTable", &puts_spec) < 0 ||
                         add_type(made, "Pen", &pen_spec) < 0 ||
                         add_type(made, "TimeoutWheel", &timeout_wheel_spec) < 0 || timeouts_init(made) < 0 ||
                         forks_init() < 0 || log_init() < 0 || deliveries_init() < 0 ||
                         PyModule_AddIntConstant(made, "INTERFACE", INTERFACE) < 0))
        Py_CLEAR(made);
    return made;
}
