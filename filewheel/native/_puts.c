/* PutTable in C: the puts of a deal, without an object for each.
 *
 * A put stays in the body of its frame; this table has its id and address. So gathering reads each body once, sorting
 * moves four words per put, and each put is copied once: into its new file.
 * filewheel/native/puts.py has the same in Python, and documents the methods.
 * Invariant: every record is in a bytes object that `kept` holds.
 */
#include "_loops.h"

#include <stdlib.h>

#define AHEAD 8 /* sorted puts are scattered in memory: prefetch them before the copy */

typedef struct {
    PyObject_HEAD
    PyObject *kept;
    Keyed *entries;
    Py_ssize_t count, room;
    Py_ssize_t bytes; /* the total size of the records */
} PutTable;

static PyObject *puts_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    PutTable *self = (PutTable *)type->tp_alloc(type, 0);
    if (self != NULL && (self->kept = PyList_New(0)) == NULL)
        Py_CLEAR(self);
    return (PyObject *)self;
}

static void puts_dealloc(PutTable *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyMem_RawFree(self->entries);
    Py_XDECREF(self->kept);
    type->tp_free(self);
    Py_DECREF(type);
}

static Py_ssize_t puts_length(PutTable *self)
{
    return self->count;
}

static int push(PutTable *self, const unsigned char *record, Py_ssize_t size)
{
    if (self->count == self->room) {
        Py_ssize_t room = self->room ? self->room * 2 : 1024;
        Keyed *more = PyMem_RawRealloc(self->entries, room * sizeof(Keyed));
        if (more == NULL) {
            PyErr_NoMemory();
            return -1;
        }
        self->entries = more;
        self->room = room;
    }
    self->entries[self->count++] = (Keyed){load_be64(record + ID_AT), load_be64(record + ID_AT + 8), record, size};
    self->bytes += size;
    return 0;
}

/* Remove all but the first ones. */
static void shorten(PutTable *self, Py_ssize_t count)
{
    while (self->count > count)
        self->bytes -= self->entries[--self->count].size;
}

static int is_id(PyObject *id)
{
    return PyBytes_Check(id) && PyBytes_GET_SIZE(id) == ID_BYTES;
}

/* add(body, first, last) -> drops */
static PyObject *add(PutTable *self, PyObject *const *args, Py_ssize_t nargs)
{
    if (nargs != 3 || !PyBytes_CheckExact(args[0]) || !is_id(args[1]) || !is_id(args[2]))
        return PyErr_Format(PyExc_TypeError, "add(body, first, last)");
    const unsigned char *start = (unsigned char *)PyBytes_AS_STRING(args[0]), *p = start;
    const unsigned char *end = p + PyBytes_GET_SIZE(args[0]);
    const char *first = PyBytes_AS_STRING(args[1]), *last = PyBytes_AS_STRING(args[2]);
    Py_ssize_t before = self->count;
    int strange = 0, outside = 0;
    PyObject *drops = PyList_New(0);
    if (drops == NULL)
        return NULL;
    while (p < end) {
        const unsigned char *next = skip_value(p, end);
        if (next == NULL) {
            PyErr_Format(PyExc_ValueError, "not a run of records after byte %zd of a frame", (Py_ssize_t)(p - start));
            goto failed;
        }
        int is_put = next - p >= DROP_BYTES && memcmp(p, PUT_PREFIX, 4) == 0;
        if (!is_put && !(next - p == DROP_BYTES && memcmp(p, DROP_PREFIX, 4) == 0)) {
            strange = 1; /* reported at the end: an error in the run of values comes first */
            p = next;
            continue;
        }
        if (memcmp(p + ID_AT, first, ID_BYTES) < 0 || memcmp(p + ID_AT, last, ID_BYTES) > 0)
            outside = 1;
        if (is_put) {
            if (push(self, p, next - p) < 0)
                goto failed;
        } else {
            PyObject *drop = PyBytes_FromStringAndSize((const char *)p, next - p);
            if (drop == NULL || PyList_Append(drops, drop) < 0) {
                Py_XDECREF(drop);
                goto failed;
            }
            Py_DECREF(drop);
        }
        p = next;
    }
    if (strange)
        PyErr_SetString(PyExc_ValueError, "a frame holds a record of an unknown kind");
    else if (outside)
        PyErr_SetString(PyExc_ValueError, "the header does not fit the records");
    else if (self->count == before || PyList_Append(self->kept, args[0]) == 0)
        return drops;
failed:
    shorten(self, before);
    Py_DECREF(drops);
    return NULL;
}

/* extend(records) */
static PyObject *extend(PutTable *self, PyObject *records)
{
    if (!PyList_CheckExact(records))
        return PyErr_Format(PyExc_TypeError, "extend(list)");
    Py_ssize_t before = self->count;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(records); i++) {
        PyObject *record = PyList_GET_ITEM(records, i);
        if (!PyBytes_CheckExact(record) || PyBytes_GET_SIZE(record) < DROP_BYTES ||
            memcmp(PyBytes_AS_STRING(record), PUT_PREFIX, 4) != 0)
            PyErr_SetString(PyExc_ValueError, "not a put");
        else if (push(self, (unsigned char *)PyBytes_AS_STRING(record), PyBytes_GET_SIZE(record)) == 0 &&
                 PyList_Append(self->kept, record) == 0)
            continue;
        shorten(self, before);
        return NULL;
    }
    Py_RETURN_NONE;
}

/* sort() */
static PyObject *sort(PutTable *self, PyObject *none)
{
    Py_ssize_t i = 1;
    while (i < self->count && by_key(&self->entries[i - 1], &self->entries[i]) <= 0)
        i++;
    if (i < self->count) {
        Keyed *other = PyMem_RawMalloc(self->count * sizeof(Keyed));
        if (other == NULL)
            return PyErr_NoMemory();
        radix(self->entries, other, self->count);
        PyMem_RawFree(other);
    }
    Py_RETURN_NONE;
}

/* Return the first index, from `at` on, with this id or a greater one. */
static Py_ssize_t place(const PutTable *self, const unsigned char *id, Py_ssize_t at)
{
    uint64_t high = load_be64(id), low = load_be64(id + 8);
    Py_ssize_t end = self->count;
    while (at < end) {
        Py_ssize_t middle = at + (end - at) / 2;
        const Keyed *e = &self->entries[middle];
        if (e->high < high || (e->high == high && e->low < low))
            at = middle + 1;
        else
            end = middle;
    }
    return at;
}

static int has_id(const PutTable *self, Py_ssize_t at, const unsigned char *id)
{
    return at < self->count && memcmp(self->entries[at].record + ID_AT, id, ID_BYTES) == 0;
}

/* find(id, at) -> place */
static PyObject *find(PutTable *self, PyObject *const *args, Py_ssize_t nargs)
{
    if (nargs != 2 || !is_id(args[0]))
        return PyErr_Format(PyExc_TypeError, "find(id, at)");
    Py_ssize_t at = PyLong_AsSsize_t(args[1]);
    if (PyErr_Occurred())
        return NULL;
    return PyLong_FromSsize_t(place(self, (unsigned char *)PyBytes_AS_STRING(args[0]), at < 0 ? 0 : at));
}

/* id(at) -> id */
static PyObject *id(PutTable *self, PyObject *place)
{
    Py_ssize_t at = PyLong_AsSsize_t(place);
    if (at == -1 && PyErr_Occurred())
        return NULL;
    if (at < 0 || at >= self->count)
        return PyErr_Format(PyExc_IndexError, "no put there");
    return PyBytes_FromStringAndSize((const char *)self->entries[at].record + ID_AT, ID_BYTES);
}

/* having(ids) -> set */
static PyObject *having(PutTable *self, PyObject *ids)
{
    PyObject *found = PySet_New(NULL), *each = found == NULL ? NULL : PyObject_GetIter(ids), *id = NULL;
    while (each != NULL && (id = PyIter_Next(each)) != NULL) {
        const unsigned char *p = is_id(id) ? (unsigned char *)PyBytes_AS_STRING(id) : NULL;
        if (p != NULL && has_id(self, place(self, p, 0), p) && PySet_Add(found, id) < 0)
            break;
        Py_CLEAR(id);
    }
    Py_XDECREF(id);
    Py_XDECREF(each);
    if (each == NULL || PyErr_Occurred())
        Py_CLEAR(found);
    return found;
}

/* remove(ids) */
static PyObject *remove_ids(PutTable *self, PyObject *ids)
{
    PyObject *each = PyObject_GetIter(ids), *id;
    Py_ssize_t kept = 0;
    if (each == NULL)
        return NULL;
    while ((id = PyIter_Next(each)) != NULL) {
        const unsigned char *p = is_id(id) ? (unsigned char *)PyBytes_AS_STRING(id) : NULL;
        for (Py_ssize_t at = p == NULL ? self->count : place(self, p, 0); has_id(self, at, p); at++) {
            self->bytes -= self->entries[at].size;
            self->entries[at].size = 0;
        }
        Py_DECREF(id);
    }
    Py_DECREF(each);
    for (Py_ssize_t i = 0; i < self->count; i++)
        if (self->entries[i].size)
            self->entries[kept++] = self->entries[i];
    self->count = kept;
    if (PyErr_Occurred())
        return NULL;
    Py_RETURN_NONE;
}

static int range_of(PutTable *self, PyObject *const *args, Py_ssize_t *start, Py_ssize_t *end)
{
    *start = PyLong_AsSsize_t(args[0]);
    *end = PyLong_AsSsize_t(args[1]);
    if (PyErr_Occurred())
        return -1;
    if (*start < 0 || *start > *end || *end > self->count) {
        PyErr_SetString(PyExc_IndexError, "no such range of puts");
        return -1;
    }
    return 0;
}

/* cut(start, end) */
static PyObject *cut(PutTable *self, PyObject *const *args, Py_ssize_t nargs)
{
    Py_ssize_t start, end;
    if (nargs != 2)
        return PyErr_Format(PyExc_TypeError, "cut(start, end)");
    if (range_of(self, args, &start, &end) < 0)
        return NULL;
    for (Py_ssize_t i = start; i < end; i++)
        self->bytes -= self->entries[i].size;
    if (end < self->count) /* an empty table has no entries and no memory */
        memmove(self->entries + start, self->entries + end, (self->count - end) * sizeof(Keyed));
    self->count -= end - start;
    Py_RETURN_NONE;
}

/* unique() */
static PyObject *unique(PutTable *self, PyObject *none)
{
    Py_ssize_t kept = 0;
    for (Py_ssize_t i = 0; i < self->count; i++) {
        const Keyed *e = &self->entries[i];
        if (i + 1 < self->count && e->high == e[1].high && e->low == e[1].low)
            self->bytes -= e->size;
        else
            self->entries[kept++] = *e;
    }
    self->count = kept;
    Py_RETURN_NONE;
}

/* size_bytes() */
static PyObject *size_bytes(PutTable *self, PyObject *none)
{
    return PyLong_FromSsize_t(self->bytes);
}

/* full_at(count, size_bytes) -> place */
static PyObject *full_at(PutTable *self, PyObject *const *args, Py_ssize_t nargs)
{
    if (nargs != 2)
        return PyErr_Format(PyExc_TypeError, "full_at(count, size_bytes)");
    Py_ssize_t count = PyLong_AsSsize_t(args[0]), bytes = PyLong_AsSsize_t(args[1]), at = 0, size = 0;
    if (PyErr_Occurred())
        return NULL;
    for (; at < self->count; at++) {
        size += self->entries[at].size;
        if (at + 1 >= count || size >= bytes)
            break;
    }
    return PyLong_FromSsize_t(at);
}

static inline void fetch_ahead(const Keyed *e, Py_ssize_t left)
{
    if (left > AHEAD)
        for (Py_ssize_t line = 0; line < e[AHEAD].size && line < 256; line += 64)
            __builtin_prefetch(e[AHEAD].record + line);
}

/* keep(count): copies them into contiguous memory of their own. */
static PyObject *keep(PutTable *self, PyObject *number)
{
    Py_ssize_t count = PyLong_AsSsize_t(number);
    if (count == -1 && PyErr_Occurred())
        return NULL;
    if (count < 0 || count > self->count)
        return PyErr_Format(PyExc_IndexError, "no such range of puts");
    shorten(self, count);
    PyObject *all = PyBytes_FromStringAndSize(NULL, self->bytes), *kept = all == NULL ? NULL : PyList_New(1);
    if (kept == NULL) {
        Py_XDECREF(all);
        return NULL;
    }
    unsigned char *p = (unsigned char *)PyBytes_AS_STRING(all);
    for (Py_ssize_t i = 0; i < count; i++) {
        Keyed *e = &self->entries[i];
        fetch_ahead(e, count - i);
        memcpy(p, e->record, e->size);
        e->record = p;
        p += e->size;
    }
    PyList_SET_ITEM(kept, 0, all);
    Py_SETREF(self->kept, kept);
    Py_RETURN_NONE;
}

static PyObject *parts_of(PutTable *self, Py_ssize_t at, Py_ssize_t size)
{
    PyObject *out = PyList_New(self->count);
    for (Py_ssize_t i = 0; out != NULL && i < self->count; i++) {
        const Keyed *e = &self->entries[i];
        fetch_ahead(e, self->count - i);
        PyObject *part = PyBytes_FromStringAndSize((const char *)e->record + at, size ? size : e->size);
        if (part == NULL)
            Py_CLEAR(out);
        else
            PyList_SET_ITEM(out, i, part);
    }
    return out;
}

/* ids() -> list */
static PyObject *ids(PutTable *self, PyObject *none)
{
    return parts_of(self, ID_AT, ID_BYTES);
}

/* records() -> list */
static PyObject *records(PutTable *self, PyObject *none)
{
    return parts_of(self, 0, 0);
}

/* Return the end of the frame that starts with put `start`: at most `limit` bytes, or one put. */
static Py_ssize_t portion(const PutTable *self, Py_ssize_t start, Py_ssize_t end, Py_ssize_t limit, Py_ssize_t *size)
{
    Py_ssize_t at = start;
    *size = 0;
    while (at < end && (at == start || *size + self->entries[at].size <= limit))
        *size += self->entries[at++].size;
    return at;
}

/* frames(start, end, seed, offset, number, limit) -> bytes */
static PyObject *frames(PutTable *self, PyObject *const *args, Py_ssize_t nargs)
{
    Py_ssize_t start, end, size, whole = 0;
    if (nargs != 6)
        return PyErr_Format(PyExc_TypeError, "frames(start, end, seed, offset, number, limit)");
    if (range_of(self, args, &start, &end) < 0)
        return NULL;
    uint64_t seed = PyLong_AsUnsignedLongLong(args[2]), offset = PyLong_AsUnsignedLongLong(args[3]);
    uint64_t number = PyLong_AsUnsignedLongLong(args[4]);
    Py_ssize_t limit = PyLong_AsSsize_t(args[5]);
    if (PyErr_Occurred())
        return NULL;
    for (Py_ssize_t at = start; at < end;) {
        at = portion(self, at, end, limit, &size);
        whole += HEADER_BYTES + size + (-size & 7);
    }
    PyObject *out = PyBytes_FromStringAndSize(NULL, whole);
    if (out == NULL)
        return NULL;
    unsigned char *head = (unsigned char *)PyBytes_AS_STRING(out);
    for (Py_ssize_t from = start, upto; from < end; from = upto) {
        upto = portion(self, from, end, limit, &size);
        unsigned char *body = head + HEADER_BYTES, *p = body;
        for (Py_ssize_t i = from; i < upto; i++) {
            const Keyed *e = &self->entries[i];
            fetch_ahead(e, end - i);
            memcpy(p, e->record, e->size);
            p += e->size;
        }
        memset(p, 0, -size & 7);
        uint64_t n[7] = {0, seed, offset, number, 0, (uint64_t)(upto - from), 0};
        write_header(
            head, size, crc_of(body, size, (uint32_t)seed), n, body + ID_AT, self->entries[upto - 1].record + ID_AT);
        head = p + (-size & 7);
        offset += HEADER_BYTES + size + (-size & 7);
    }
    return out;
}

static PyMethodDef methods[] = {
    {"add", (PyCFunction)(void (*)(void))add, METH_FASTCALL, NULL},
    {"extend", (PyCFunction)extend, METH_O, NULL},
    {"sort", (PyCFunction)sort, METH_NOARGS, NULL},
    {"find", (PyCFunction)(void (*)(void))find, METH_FASTCALL, NULL},
    {"id", (PyCFunction)id, METH_O, NULL},
    {"having", (PyCFunction)having, METH_O, NULL},
    {"remove", (PyCFunction)remove_ids, METH_O, NULL},
    {"unique", (PyCFunction)unique, METH_NOARGS, NULL},
    {"size_bytes", (PyCFunction)size_bytes, METH_NOARGS, NULL},
    {"full_at", (PyCFunction)(void (*)(void))full_at, METH_FASTCALL, NULL},
    {"keep", (PyCFunction)keep, METH_O, NULL},
    {"ids", (PyCFunction)ids, METH_NOARGS, NULL},
    {"records", (PyCFunction)records, METH_NOARGS, NULL},
    {"cut", (PyCFunction)(void (*)(void))cut, METH_FASTCALL, NULL},
    {"frames", (PyCFunction)(void (*)(void))frames, METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_new, puts_new},
    {Py_tp_dealloc, puts_dealloc},
    {Py_tp_methods, methods},
    {Py_sq_length, puts_length},
    {0, NULL},
};

PyType_Spec puts_spec = {
    .name = "filewheel.native._loops.PutTable", .basicsize = sizeof(PutTable), .flags = Py_TPFLAGS_DEFAULT, .slots = slots,
};
