/* A part of a file in memory: what is stored there is in the file at once, without a call of the system.
 *
 * For writers whose messages need not survive a power cut: a write of 200 bytes takes longer than all else that an enqueue
 * does. Whoever is killed leaves what was stored, as after a write.
 *
 * A page that the file system cannot give (it is full, the disk fails, someone cut the file off) is not an error of a call
 * but a signal, SIGBUS, which ends a process. So it is caught while something is stored, and the caller is told to write
 * instead, which gives the error. A SIGBUS at any other time goes to whoever would have had it.
 * Invariant: no handler of others is lost, and outside of `put` the process behaves as if this were not here.
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

/* (size, id), without reading a format first. Takes the reference to `id`. */
static PyObject *pair_of(Py_ssize_t size, PyObject *id)
{
    PyObject *number = PyLong_FromSsize_t(size), *pair = number == NULL ? NULL : PyTuple_New(2);
    if (pair == NULL) {
        Py_XDECREF(number);
        Py_DECREF(id);
        return NULL;
    }
    PyTuple_SET_ITEM(pair, 0, number);
    PyTuple_SET_ITEM(pair, 1, id);
    return pair;
}

/* put(low, seq, due_us, enqueued_us, tail, payload, seed, offset, number, synced) -> (size, id); None: write it instead */
static PyObject *map_put(Map *self, PyObject *const *args, Py_ssize_t nargs)
{
    unsigned char little[1024], *frame = little;
    Py_ssize_t size;
    PyObject *result = NULL, *id;
    if (nargs != 10)
        return PyErr_Format(PyExc_TypeError, "put takes 10 arguments");
    OnePut put;
    if (read_put(args, &put) < 0)
        return NULL;
    size = frame_size(&put);
    uint64_t offset = put.n[2];
    if (offset < self->start || offset > self->end || (uint64_t)size > self->end - offset)
        Py_RETURN_NONE;
    if (size > (Py_ssize_t)sizeof little && (frame = PyMem_Malloc((size_t)size)) == NULL)
        return PyErr_NoMemory();
    lay_put(&put, frame);
    id = new_id(frame + HEADER_BYTES + ID_AT);
    if (id != NULL) {
        if (store(self->memory + (offset - self->start), frame, size))
            result = pair_of(size, id);
        else {
            Py_DECREF(id);
            result = Py_NewRef(Py_None);
        }
    }
    if (frame != little)
        PyMem_Free(frame);
    return result;
}

static PyMethodDef methods[] = {
    {"put", (PyCFunction)(void (*)(void))map_put, METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_new, map_new},
    {Py_tp_dealloc, map_dealloc},
    {Py_tp_methods, methods},
    {0, NULL},
};

PyType_Spec map_spec = {
    .name = "filewheel._loops.Map", .basicsize = sizeof(Map), .flags = Py_TPFLAGS_DEFAULT, .slots = slots,
};
#endif
