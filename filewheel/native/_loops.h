/* Shared by the C sources: the constants of docs/format.md, and functions that read and write numbers. */
#ifndef FILEWHEEL_LOOPS_H
#define FILEWHEEL_LOOPS_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#ifdef Py_GIL_DISABLED
#error "not for free-threaded builds: the lists read here are guarded by the interpreter's lock"
#endif

#include <stdint.h>
#include <string.h>

#define ID_BYTES 16
#define ID_AT 4
#define PUT_HEAD 20 /* four fixed bytes and the id */
#define DROP_BYTES 21
#define HEADER_BYTES 72
#define HELD_BYTES_MAX 65536 /* larger writes release the interpreter's lock */

static const unsigned char PUT_PREFIX[4] = {0x98, 0x01, 0xc4, 0x10};
static const unsigned char DROP_PREFIX[4] = {0x93, 0x02, 0xc4, 0x10};

static inline uint64_t load_be64(const unsigned char *p)
{
    uint64_t v;
    memcpy(&v, p, 8);
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    v = __builtin_bswap64(v);
#endif
    return v;
}

static inline void store_be64(unsigned char *p, uint64_t v)
{
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    v = __builtin_bswap64(v);
#endif
    memcpy(p, &v, 8);
}

static inline void store_le(unsigned char *p, uint64_t v, int bytes)
{
    for (int i = 0; i < bytes; i++)
        p[i] = (unsigned char)(v >> 8 * i);
}

static inline uint64_t load_le(const unsigned char *p, int bytes)
{
    uint64_t v = 0;
    for (int i = bytes; i-- > 0;)
        v = v << 8 | p[i];
    return v;
}

/* The packed size of a payload, with its length field. */
static inline Py_ssize_t bin_size(Py_ssize_t size)
{
    return size + (size < 256 ? 2 : size < 65536 ? 3 : 5);
}

/* Hide an object without possible cycles from the garbage collector, as tuples of plain values are. Otherwise every
 * seventy batches trigger a full collection, which takes longer than all other work here. */
static inline void untrack(PyObject *object)
{
    if (PyObject_IS_GC(object))
        PyObject_GC_UnTrack(object);
}

/* A record and the two halves of its id: the unit of sorting. */
typedef struct {
    uint64_t high, low;
    const unsigned char *record;
    Py_ssize_t size;
} Keyed;

/* The parts of a frame with one new put. */
typedef struct {
    uint64_t seq, due, enqueued;
    uint64_t n[7]; /* as in write_header */
    const unsigned char *low;
    PyObject *tail, *payload;
    Py_ssize_t size; /* of the body */
} OnePut;

#pragma GCC visibility push(hidden)

/* _crc.c */
void crc_init(void);
uint32_t crc_of(const unsigned char *p, Py_ssize_t size, uint32_t seed);

/* _loops.c */
const unsigned char *skip_value(const unsigned char *p, const unsigned char *end);
void write_header(
    unsigned char *p, Py_ssize_t size, uint32_t sum, const uint64_t n[7], const unsigned char *first,
    const unsigned char *last);
PyObject *new_id(const unsigned char *p);
void id_bytes(const OnePut *put, unsigned char *p);
Py_ssize_t frame_size(const OnePut *put);
void lay_put(const OnePut *put, unsigned char *head);
int by_key(const void *a, const void *b);
void radix(Keyed *from, Keyed *to, Py_ssize_t count);

int find_slots(PyObject *type, const char *const names[], int count, Py_ssize_t *offsets);

/* _frames.c */
PyObject *learn_frame(PyObject *self, PyObject *frame);
PyObject *read_frames(PyObject *self, PyObject *const *args, Py_ssize_t nargs);

/* _log.c */
int log_init(void);
PyObject *learn_record(PyObject *self, PyObject *type);
PyObject *learn_put(PyObject *self, PyObject *type);
PyObject *read_records(PyObject *self, PyObject *messages);
PyObject *records_size(PyObject *self, PyObject *records);
PyObject *delayed_puts(PyObject *self, PyObject *const *args, Py_ssize_t nargs);

/* _deliveries.c */
int deliveries_init(void);
PyObject *learn_outgoing(PyObject *self, PyObject *const *args, Py_ssize_t nargs);
PyObject *deliveries(PyObject *self, PyObject *const *args, Py_ssize_t nargs);

/* _puts.c */
extern PyType_Spec puts_spec;

/* _pen.c */
extern PyType_Spec pen_spec;

/* _timeouts.c */
extern PyType_Spec timeout_wheel_spec;
int timeouts_init(PyObject *module);

/* _forks.c */
PyObject *keep_from_children(PyObject *self, PyObject *fd);
PyObject *let_children_have(PyObject *self, PyObject *fd);
PyObject *count_forks(PyObject *self, PyObject *none);
int forks_init(void);

#pragma GCC visibility pop

#endif
