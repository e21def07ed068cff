/* A pen writes puts that need not be durable on return, each in a single call.
 *
 * It has the writer's next sequence number, the offset of the next frame, and the number of the last one. The
 * interpreter's lock is held from reading these to updating them after the write, so no other thread and no signal
 * handler in Python can interfere.
 * Invariant: a write error ends the pen; nothing is written after a frame that may be incomplete.
 */
#include "_loops.h"

#include <errno.h>
#include <unistd.h>

typedef struct {
    PyObject_HEAD
    int fd, is_open, has_failed;
    unsigned char low[ID_BYTES];
    uint64_t seq, seq_end, seed, offset, end, number, synced;
} Pen;

/* Pen(fd, low, seq, seq_end, seed, offset, end, number, synced): frames go between `offset` and `end` of the file. */
static PyObject *pen_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    int fd;
    const char *low;
    Py_ssize_t low_size;
    unsigned long long n[7];
    if (!PyArg_ParseTuple(args, "iy#KKKKKKK", &fd, &low, &low_size, n, n + 1, n + 2, n + 3, n + 4, n + 5, n + 6))
        return NULL;
    if (low_size != ID_BYTES || n[4] < n[3] || n[4] > INT64_MAX)
        return PyErr_Format(PyExc_ValueError, "a pen needs the 16 bytes of an id, and an end that is not before its offset");
    Pen *self = (Pen *)type->tp_alloc(type, 0);
    if (self == NULL)
        return NULL;
    memcpy(self->low, low, ID_BYTES);
    self->fd = fd, self->is_open = 1;
    self->seq = n[0], self->seq_end = n[1], self->seed = n[2], self->offset = n[3], self->end = n[4];
    self->number = n[5], self->synced = n[6];
    return (PyObject *)self;
}

static void pen_dealloc(Pen *self)
{
    PyTypeObject *type = Py_TYPE(self);
    type->tp_free(self);
    Py_DECREF(type);
}

/* Append a frame; 0 with errno set when a part of it may be missing. */
static int write_frame(const Pen *self, const unsigned char *frame, Py_ssize_t size)
{
    uint64_t at = self->offset;
    while (size > 0) {
        ssize_t wrote = pwrite(self->fd, frame, (size_t)size, (off_t)at);
        if (wrote < 0 && errno == EINTR)
            continue;
        if (wrote <= 0) {
            errno = wrote < 0 ? errno : ENOSPC;
            return 0;
        }
        frame += wrote, at += (uint64_t)wrote, size -= wrote;
    }
    return 1;
}

/* Build a put and write it: 1 done, 0 no room, -1 with an exception. */
static int write_put(Pen *self, OnePut *put)
{
    unsigned char little[1024], *frame = little;
    Py_ssize_t size = frame_size(put);
    if ((uint64_t)size > self->end - self->offset)
        return 0;
    if (size > (Py_ssize_t)sizeof little && (frame = PyMem_Malloc((size_t)size)) == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    put->n[1] = self->seed, put->n[2] = self->offset, put->n[3] = self->number + 1, put->n[4] = self->synced;
    lay_put(put, frame);
    int done = write_frame(self, frame, size);
    if (done) {
        self->offset += (uint64_t)size;
        self->number++;
    } else {
        self->is_open = 0;
        self->has_failed = 1;
        PyErr_SetFromErrno(PyExc_OSError);
    }
    if (frame != little)
        PyMem_Free(frame);
    return done ? 1 : -1;
}

/* put(due_us, enqueued_us, tail, payload) -> id; None: the journal must do it. */
static PyObject *pen_put(Pen *self, PyObject *const *args, Py_ssize_t nargs)
{
    if (nargs != 4 || !PyBytes_Check(args[2]) || !PyBytes_Check(args[3]))
        return PyErr_Format(PyExc_TypeError, "put(due_us, enqueued_us, tail, payload)");
    OnePut put = {
        0, PyLong_AsUnsignedLongLong(args[0]), PyLong_AsUnsignedLongLong(args[1]), {0, 0, 0, 0, 0, 1, 0}, self->low,
        args[2], args[3], PUT_HEAD + 10 + PyBytes_GET_SIZE(args[2]) + bin_size(PyBytes_GET_SIZE(args[3])),
    };
    if (PyErr_Occurred())
        return NULL;
    /* The interpreter's lock is held during the write: a short time. */
    if (!self->is_open || self->seq >= self->seq_end || put.size > HELD_BYTES_MAX)
        Py_RETURN_NONE;
    put.seq = self->seq++; /* before the id is made: that may run the garbage collector, and a destructor may enqueue */
    unsigned char bytes[ID_BYTES];
    id_bytes(&put, bytes);
    PyObject *id = new_id(bytes);
    if (id == NULL)
        return NULL;
    int done = self->is_open ? write_put(self, &put) : 0;
    if (done > 0)
        return id;
    Py_DECREF(id);
    if (done < 0)
        return NULL;
    Py_RETURN_NONE;
}

/* end() -> (seq, offset, number, has_failed): stops the pen. A second call returns the same. */
static PyObject *pen_end(Pen *self, PyObject *Py_UNUSED(none))
{
    self->is_open = 0;
    return Py_BuildValue(
        "KKKN", (unsigned long long)self->seq, (unsigned long long)self->offset, (unsigned long long)self->number,
        PyBool_FromLong(self->has_failed));
}

static PyMethodDef methods[] = {
    {"put", (PyCFunction)(void (*)(void))pen_put, METH_FASTCALL, NULL},
    {"end", (PyCFunction)pen_end, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_new, pen_new},
    {Py_tp_dealloc, pen_dealloc},
    {Py_tp_methods, methods},
    {0, NULL},
};

PyType_Spec pen_spec = {
    .name = "filewheel.native._loops.Pen", .basicsize = sizeof(Pen), .flags = Py_TPFLAGS_DEFAULT, .slots = slots,
};
