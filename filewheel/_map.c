/* A part of a file in memory: what is stored there is in the file at once, without a call of the system.
 *
 * For writers whose messages need not survive a power cut: a write of 200 bytes takes longer than all else that an enqueue
 * does. Whoever is killed leaves what was stored, as after a write. A pen does all of it in one call.
 *
 * A page that the file system cannot give (it is full, the disk fails, someone cut the file off) is not an error of a call
 * but a signal, SIGBUS, which ends a process. So it is caught while something is stored, and the caller is told to write
 * instead, which gives the error. A SIGBUS at any other time goes to whoever would have had it.
 * Invariant: no handler of others is lost, and outside of `store` the process behaves as if this were not here.
 */
#include "_loops.h"

#ifdef FILEWHEEL_MAPS

#include <setjmp.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <errno.h>

static __thread sigjmp_buf back;
static __thread volatile sig_atomic_t guarded;
static struct sigaction before;

static void on_sigbus(int number, siginfo_t *info, void *context)
{
    (void)context;
    if (guarded)
        siglongjmp(back, 1);
    /* Not ours: from here on it is as it was before. What made the fault is tried again, and makes it again. */
    sigaction(number, &before, NULL);
    if (info->si_code <= 0)
        raise(number); /* somebody sent it */
}

/* See to it that the handler is there, in front of whatever was. */
static int guard(void)
{
    struct sigaction now, ours = {0};
    if (sigaction(SIGBUS, NULL, &now) < 0)
        return -1;
    if ((now.sa_flags & SA_SIGINFO) && now.sa_sigaction == on_sigbus)
        return 0;
    before = now;
    ours.sa_sigaction = on_sigbus;
    ours.sa_flags = SA_SIGINFO | SA_NODEFER | SA_ONSTACK; /* not blocked meanwhile: the jump restores no mask */
    sigemptyset(&ours.sa_mask);
    return sigaction(SIGBUS, &ours, NULL);
}

/* Where what is stored and what is read and written are the same pages. */
static int is_known(int fd)
{
    static const unsigned long types[] = {
        0xEF53 /* ext */, 0x58465342 /* XFS */, 0x9123683E /* btrfs */, 0xF2F52010 /* F2FS */, 0x01021994 /* tmpfs */};
    struct statfs info;
    if (fstatfs(fd, &info) < 0)
        return 0;
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if ((unsigned long)info.f_type == types[i])
            return 1;
    return 0;
}

typedef struct {
    PyObject_HEAD
    unsigned char *memory;
    uint64_t start, end; /* what it shows of the file */
} Map;

/* Map(fd, start, end). Raises OSError where that cannot be had. */
static PyObject *map_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    int fd;
    unsigned long long start, end;
    if (!PyArg_ParseTuple(args, "iKK", &fd, &start, &end))
        return NULL;
    start -= start % (unsigned long long)sysconf(_SC_PAGESIZE);
    if (start >= end)
        return PyErr_Format(PyExc_ValueError, "nothing to map");
    Map *self = (Map *)type->tp_alloc(type, 0);
    if (self == NULL)
        return NULL;
    void *memory = MAP_FAILED;
    errno = ENOTSUP;
    if (is_known(fd) && guard() == 0)
        memory = mmap(NULL, (size_t)(end - start), PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)start);
    if (memory == MAP_FAILED) {
        Py_DECREF(self);
        return PyErr_SetFromErrno(PyExc_OSError);
    }
    madvise(memory, (size_t)(end - start), MADV_DONTFORK);
    *self = (Map){.ob_base = self->ob_base, .memory = memory, .start = start, .end = end};
    return (PyObject *)self;
}

static void map_dealloc(Map *self)
{
    PyTypeObject *type = Py_TYPE(self);
    if (self->memory != NULL)
        munmap(self->memory, (size_t)(self->end - self->start));
    type->tp_free(self);
    Py_DECREF(type);
}

/* Store a frame; 0 when a page could not be had. Its header comes last: whoever reads meanwhile finds no frame, or all. */
static int store(unsigned char *to, const unsigned char *frame, Py_ssize_t size)
{
    if (sigsetjmp(back, 0) != 0) {
        guarded = 0;
        return 0;
    }
    guarded = 1;
    __atomic_signal_fence(__ATOMIC_SEQ_CST);
    memcpy(to + HEADER_BYTES, frame + HEADER_BYTES, (size_t)size - HEADER_BYTES);
    __atomic_thread_fence(__ATOMIC_RELEASE);
    memcpy(to, frame, HEADER_BYTES);
    __atomic_signal_fence(__ATOMIC_SEQ_CST);
    guarded = 0;
    return 1;
}

/* -- a pen: a producer's hand in a map ------------------------------------------------------------------------ */

/* Where a writer stands, while it is here and not in its journal. The interpreter's lock guards it: nothing else runs
 * while a put goes on, and no signal handler in Python comes between the store and what is counted with it. */
typedef struct {
    PyObject_HEAD
    Map *map;
    int is_open;
    unsigned char low[ID_BYTES];
    uint64_t seq, seq_end, seed, offset, end, number, synced;
} Pen;

static PyTypeObject *pen_type;

/* pen(low, seq, seq_end, seed, offset, end, number, synced): frames go between `offset` and `end` of the file. */
static PyObject *map_pen(Map *self, PyObject *const *args, Py_ssize_t nargs)
{
    uint64_t n[7];
    if (nargs != 8 || !PyBytes_Check(args[0]) || PyBytes_GET_SIZE(args[0]) != ID_BYTES)
        return PyErr_Format(PyExc_TypeError, "pen(low, seq, seq_end, seed, offset, end, number, synced)");
    for (int i = 0; i < 7; i++)
        n[i] = PyLong_AsUnsignedLongLong(args[1 + i]);
    if (PyErr_Occurred())
        return NULL;
    if (n[3] < self->start || n[4] > self->end)
        return PyErr_Format(PyExc_ValueError, "outside of what is mapped");
    Pen *pen = (Pen *)pen_type->tp_alloc(pen_type, 0);
    if (pen == NULL)
        return NULL;
    pen->map = (Map *)Py_NewRef((PyObject *)self);
    memcpy(pen->low, PyBytes_AS_STRING(args[0]), ID_BYTES);
    pen->seq = n[0], pen->seq_end = n[1], pen->seed = n[2], pen->offset = n[3], pen->end = n[4];
    pen->number = n[5], pen->synced = n[6];
    pen->is_open = 1;
    return (PyObject *)pen;
}

static void pen_dealloc(Pen *self)
{
    PyTypeObject *type = Py_TYPE(self);
    Py_XDECREF((PyObject *)self->map);
    type->tp_free(self);
    Py_DECREF(type);
}

/* Lay out a put and store it at the end; 0 when there is no room, or a page could not be had. */
static int write_down(Pen *self, OnePut *put)
{
    unsigned char little[1024], *frame = little;
    Py_ssize_t size = frame_size(put);
    if ((uint64_t)size > self->end - self->offset)
        return 0;
    if (size > (Py_ssize_t)sizeof little && (frame = PyMem_Malloc((size_t)size)) == NULL)
        return 0; /* written instead, which says what is the matter */
    put->n[1] = self->seed, put->n[2] = self->offset, put->n[3] = self->number + 1, put->n[4] = self->synced;
    lay_put(put, frame);
    int done = store(self->map->memory + (self->offset - self->map->start), frame, size);
    if (done) {
        self->offset += (uint64_t)size;
        self->number++;
    } else
        self->is_open = 0;
    if (frame != little)
        PyMem_Free(frame);
    return done;
}

/* put(due_us, enqueued_us, tail, payload) -> id; None: the journal has to do it. */
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
    if (!self->is_open || self->seq >= self->seq_end)
        Py_RETURN_NONE;
    put.seq = self->seq++; /* before the id is made: that may collect garbage, and garbage may enqueue */
    unsigned char bytes[ID_BYTES];
    id_bytes(&put, bytes);
    PyObject *id = new_id(bytes);
    if (id == NULL)
        return NULL;
    if (self->is_open && write_down(self, &put))
        return id;
    Py_DECREF(id);
    Py_RETURN_NONE;
}

/* end() -> (seq, offset, number): nothing is put with it any more. May be called again, and returns the same. */
static PyObject *pen_end(Pen *self, PyObject *Py_UNUSED(none))
{
    self->is_open = 0;
    return Py_BuildValue(
        "KKK", (unsigned long long)self->seq, (unsigned long long)self->offset, (unsigned long long)self->number);
}

static PyMethodDef pen_methods[] = {
    {"put", (PyCFunction)(void (*)(void))pen_put, METH_FASTCALL, NULL},
    {"end", (PyCFunction)pen_end, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot pen_slots[] = {
    {Py_tp_dealloc, pen_dealloc},
    {Py_tp_methods, pen_methods},
    {0, NULL},
};

static PyType_Spec pen_spec = {
    .name = "filewheel._loops.Pen", .basicsize = sizeof(Pen),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, .slots = pen_slots,
};

static PyMethodDef methods[] = {
    {"pen", (PyCFunction)(void (*)(void))map_pen, METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_new, map_new},
    {Py_tp_dealloc, map_dealloc},
    {Py_tp_methods, methods},
    {0, NULL},
};

static PyType_Spec map_spec = {
    .name = "filewheel._loops.Map", .basicsize = sizeof(Map), .flags = Py_TPFLAGS_DEFAULT, .slots = slots,
};

int map_init(PyObject *to)
{
    if (pen_type == NULL && (pen_type = (PyTypeObject *)PyType_FromSpec(&pen_spec)) == NULL)
        return -1;
    PyObject *type = PyType_FromSpec(&map_spec);
    int failed = PyModule_AddObjectRef(to, "Map", type);
    Py_XDECREF(type);
    return failed;
}
#endif
