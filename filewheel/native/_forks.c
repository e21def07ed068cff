/* A forked child must not hold the descriptors of its parent's locks.
 *
 * A kernel lock lives until every copy of its descriptor is closed, so a copy in a child blocks the next holder after
 * the parent's end. `pthread_atfork` detects every fork() of the process, also those of C code; Python's own hooks
 * do not. The child replaces each such descriptor by one of "/": it loses the lock, but the number stays in use, so an
 * inherited object can neither write with it nor close another file.
 * Invariant: a descriptor is listed here from before its lock is taken until after the release.
 */
#include "_loops.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>

#define WORDS 16384 /* for descriptors below 1,048,576; untouched pages take no memory */

static uint64_t held[WORDS];
static int used; /* the number of words ever used */
static unsigned long forks;

/* Runs in the child inside fork(): async-signal-safe calls only. */
static void in_child(void)
{
    int error = errno, spare = -1;
    forks++;
    for (int word = 0; word < used; word++)
        for (uint64_t bits = held[word]; bits != 0; bits &= bits - 1) {
            int fd = word * 64 + __builtin_ctzll(bits);
            if (spare < 0)
                spare = open("/", O_RDONLY | O_CLOEXEC);
            if (spare < 0 || dup2(spare, fd) < 0 || fcntl(fd, F_SETFD, FD_CLOEXEC) < 0)
                close(fd);
        }
    memset(held, 0, sizeof *held * (size_t)used);
    if (spare >= 0)
        close(spare);
    errno = error;
}

static int note(PyObject *number, int is_held)
{
    long fd = PyLong_AsLong(number);
    if (fd == -1 && PyErr_Occurred())
        return -1;
    if (fd < 0 || fd >= WORDS * 64) {
        PyErr_Format(PyExc_OverflowError, "no descriptor: %ld", fd);
        return -1;
    }
    uint64_t bit = (uint64_t)1 << fd % 64;
    if (fd / 64 >= used)
        used = (int)(fd / 64 + 1);
    held[fd / 64] = is_held ? held[fd / 64] | bit : held[fd / 64] & ~bit;
    return 0;
}

PyObject *keep_from_children(PyObject *self, PyObject *fd)
{
    if (note(fd, 1) < 0)
        return NULL;
    Py_RETURN_NONE;
}

PyObject *let_children_have(PyObject *self, PyObject *fd)
{
    if (note(fd, 0) < 0)
        return NULL;
    Py_RETURN_NONE;
}

PyObject *count_forks(PyObject *self, PyObject *none)
{
    return PyLong_FromUnsignedLong(forks);
}

/* Once per process, also when another interpreter imports this again. */
int forks_init(void)
{
    static int is_done;
    if (!is_done && pthread_atfork(NULL, NULL, in_child) != 0) {
        PyErr_NoMemory();
        return -1;
    }
    is_done = 1;
    return 0;
}
