/* Records of a Kafka log: read out of the client's messages, and packed into the puts that wait for them.
 *
 * What is not plain is left to the caller, who has all rules in Python (filewheel/kafka/client/group.py, records/): an
 * error of the client, a wrong header, a record that was put back, a delay beyond the horizon. Each such place has None.
 * filewheel/native/log.py has the same functions in Python. Invariant: what is returned is what the rules would return.
 */
#include "_loops.h"

#define RECORD_BYTES 300 /* as in kafka/node/intake.py */
#define FIELDS 8

enum { PARTITION, OFFSET, KEY, VALUE, HEADERS, TIMESTAMP, RECORD_SLOTS };
static const char *const RECORD_NAMES[RECORD_SLOTS] = {"partition", "offset", "key", "value", "headers", "timestamp_ms"};
static PyObject *record_type, *put_type; /* as learned */
static Py_ssize_t record_at[RECORD_SLOTS];
static PyObject *method_names[7]; /* of the client's messages: error, then those of the slots */

int log_init(void)
{
    static const char *const names[7] = {"error", "partition", "offset", "key", "value", "headers", "timestamp"};
    for (int i = 0; i < 7; i++)
        if ((method_names[i] = PyUnicode_InternFromString(names[i])) == NULL)
            return -1;
    return 0;
}

/* learn_record(Record): the class with these slots. */
PyObject *learn_record(PyObject *self, PyObject *type)
{
    if (!PyType_Check(type))
        return PyErr_Format(PyExc_TypeError, "learn_record(Record)");
    if (find_slots(type, RECORD_NAMES, RECORD_SLOTS, record_at) < 0)
        return NULL;
    Py_XSETREF(record_type, Py_NewRef(type));
    Py_RETURN_NONE;
}

/* learn_put(Put): a subclass of tuple. */
PyObject *learn_put(PyObject *self, PyObject *type)
{
    if (!PyType_Check(type) || !PyType_IsSubtype((PyTypeObject *)type, &PyTuple_Type))
        return PyErr_Format(PyExc_TypeError, "learn_put(Put)");
    Py_XSETREF(put_type, Py_NewRef(type));
    Py_RETURN_NONE;
}

static PyObject **slot(PyObject *record, int which)
{
    return (PyObject **)((char *)record + record_at[which]);
}

/* -- messages of the client ------------------------------------------------------------------------------------ */

/* The Record of a message; None for one that is an error of the client. */
static PyObject *record_of(PyObject *message)
{
    PyObject *found = PyObject_CallMethodNoArgs(message, method_names[0]);
    if (found == NULL || found != Py_None) {
        Py_XDECREF(found);
        return found == NULL ? NULL : Py_NewRef(Py_None);
    }
    Py_DECREF(found);
    PyObject *record = ((PyTypeObject *)record_type)->tp_alloc((PyTypeObject *)record_type, 0);
    for (int i = 0; record != NULL && i < RECORD_SLOTS; i++) {
        PyObject *value = PyObject_CallMethodNoArgs(message, method_names[i + 1]);
        if (value != NULL && i == HEADERS && value == Py_None)
            Py_SETREF(value, PyTuple_New(0));
        if (value != NULL && i == TIMESTAMP)
            Py_SETREF(value, PySequence_GetItem(value, 1));
        if (value == NULL)
            Py_CLEAR(record);
        else
            *slot(record, i) = value;
    }
    if (record != NULL)
        untrack(record); /* headers are a list of plain pairs */
    return record;
}

/* read_records(messages) -> ([Record | None], whether one is None) */
PyObject *read_records(PyObject *self, PyObject *messages)
{
    if (!PyList_Check(messages) || record_type == NULL)
        return PyErr_Format(PyExc_TypeError, "read_records(messages), after learn_record");
    Py_ssize_t count = PyList_GET_SIZE(messages);
    PyObject *records = PyList_New(count);
    int is_left = 0;
    for (Py_ssize_t i = 0; records != NULL && i < count; i++) {
        PyObject *record = record_of(PyList_GET_ITEM(messages, i));
        if (record == NULL) {
            Py_CLEAR(records);
            break;
        }
        is_left |= record == Py_None;
        PyList_SET_ITEM(records, i, record);
    }
    return records == NULL ? NULL : Py_BuildValue("NO", records, is_left ? Py_True : Py_False);
}

static Py_ssize_t length(PyObject *bytes)
{
    return bytes != NULL && PyBytes_Check(bytes) ? PyBytes_GET_SIZE(bytes) : 0;
}

/* records_size(records) -> about how many bytes they have in memory */
PyObject *records_size(PyObject *self, PyObject *records)
{
    if (!PyList_Check(records) || record_type == NULL)
        return PyErr_Format(PyExc_TypeError, "records_size(records), after learn_record");
    Py_ssize_t size = 0;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(records); i++) {
        PyObject *record = PyList_GET_ITEM(records, i);
        if (!Py_IS_TYPE(record, (PyTypeObject *)record_type))
            return PyErr_Format(PyExc_TypeError, "not a Record");
        size += RECORD_BYTES + length(*slot(record, KEY)) + length(*slot(record, VALUE));
        PyObject *headers = *slot(record, HEADERS);
        int is_list = headers != NULL && PyList_CheckExact(headers);
        if (!is_list && (headers == NULL || !PyTuple_CheckExact(headers)))
            return PyErr_Format(PyExc_TypeError, "headers are no list");
        for (Py_ssize_t n = 0; n < PySequence_Fast_GET_SIZE(headers); n++) {
            PyObject *pair = PySequence_Fast_GET_ITEM(headers, n);
            if (PyTuple_CheckExact(pair) && PyTuple_GET_SIZE(pair) == 2)
                size += length(PyTuple_GET_ITEM(pair, 1));
        }
    }
    return PyLong_FromSsize_t(size);
}

/* -- records into puts ----------------------------------------------------------------------------------------- */

typedef struct {
    PyObject *topics;         /* bytes of a target header -> the name of the topic */
    PyObject *default_target; /* a str, or None */
    int64_t horizon_ms, due_end_ms;
    Py_ssize_t size_max;
    int keyed;
} Rules;

/* What the headers of one record ask for. */
typedef struct {
    PyObject *due_ms, *epoch_s, *delay_ms, *target, *target_key; /* borrowed; NULL: absent */
    int is_other;                                                /* the rules must look at it */
} Asked;

static int is_name(PyObject *name, const char *expected, Py_ssize_t size)
{
    return PyUnicode_GET_LENGTH(name) == size && memcmp(PyUnicode_DATA(name), expected, size) == 0;
}
#define IS(name, literal) is_name(name, literal, sizeof(literal) - 1)

static void note(Asked *asked, PyObject *name, PyObject *value)
{
    switch (PyUnicode_GET_LENGTH(name)) {
    case 14:
        asked->is_other |= IS(name, "filewheel-root");
        break;
    case 15:
        if (IS(name, "scheduler-epoch"))
            asked->epoch_s = value;
        break;
    case 16:
        if (IS(name, "filewheel-due-ms"))
            asked->due_ms = value;
        break;
    case 18:
        if (IS(name, "filewheel-delay-ms"))
            asked->delay_ms = value;
        asked->is_other |= IS(name, "filewheel-fired-ms");
        break;
    case 20:
        if (IS(name, "scheduler-target-key"))
            asked->target_key = value;
        break;
    case 22:
        if (IS(name, "scheduler-target-topic"))
            asked->target = value;
        break;
    case 23:
        asked->is_other |= IS(name, "filewheel-unless-due-ms");
        break;
    case 26:
        asked->is_other |= IS(name, "filewheel-target-partition");
        break;
    }
}

static Py_ssize_t packed_bin(PyObject *bytes)
{
    return bytes == Py_None ? 1 : bin_size(PyBytes_GET_SIZE(bytes));
}

static Py_ssize_t packed_str(Py_ssize_t size)
{
    return size + (size < 32 ? 1 : size < 256 ? 2 : size < 65536 ? 3 : 5);
}

static Py_ssize_t packed_uint(uint64_t n)
{
    return n < 128 ? 1 : n < 256 ? 2 : n < 65536 ? 3 : n < 1ull << 32 ? 5 : 9;
}

/* Look at the headers; return the packed size of their list, or -1 when the rules must look at the record. */
static Py_ssize_t look(PyObject *headers, Asked *asked)
{
    if (headers == NULL || (!PyList_CheckExact(headers) && !PyTuple_CheckExact(headers)))
        return -1;
    Py_ssize_t count = PySequence_Fast_GET_SIZE(headers), size = count < 16 ? 1 : count < 65536 ? 3 : 5;
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *pair = PySequence_Fast_GET_ITEM(headers, i);
        if (!PyTuple_CheckExact(pair) || PyTuple_GET_SIZE(pair) != 2)
            return -1;
        PyObject *name = PyTuple_GET_ITEM(pair, 0), *value = PyTuple_GET_ITEM(pair, 1);
        if (!PyUnicode_CheckExact(name) || !PyUnicode_IS_COMPACT_ASCII(name) ||
            (value != Py_None && !PyBytes_CheckExact(value)))
            return -1;
        note(asked, name, value);
        size += 1 + packed_str(PyUnicode_GET_LENGTH(name)) + packed_bin(value);
    }
    return asked->is_other ? -1 : size;
}

/* A number of 1 to 17 decimal digits; -1 for anything else. */
static int64_t number(PyObject *value)
{
    if (value == Py_None)
        return -1;
    const char *p = PyBytes_AS_STRING(value);
    Py_ssize_t size = PyBytes_GET_SIZE(value);
    if (size < 1 || size > 17)
        return -1;
    int64_t n = 0;
    for (Py_ssize_t i = 0; i < size; i++) {
        if (p[i] < '0' || p[i] > '9')
            return -1;
        n = n * 10 + (p[i] - '0');
    }
    return n;
}

/* When it is due, in ms; -1 when the rules must say. */
static int64_t due_of(const Asked *asked, int64_t timestamp_ms, const Rules *rules)
{
    int64_t due;
    if (asked->due_ms != NULL)
        due = number(asked->due_ms);
    else if (asked->epoch_s != NULL) {
        due = number(asked->epoch_s);
        due = due > rules->due_end_ms / 1000 ? -1 : due < 0 ? -1 : due * 1000;
    }
    else if (asked->delay_ms != NULL) {
        due = number(asked->delay_ms);
        due = due < 0 ? -1 : due + timestamp_ms;
    }
    else
        return -1;
    if (due < 0 || due >= rules->due_end_ms || (rules->horizon_ms >= 0 && due - timestamp_ms > rules->horizon_ms))
        return -1;
    return due;
}

static unsigned char *lay_be(unsigned char *p, uint64_t n, int bytes)
{
    for (int i = bytes; i-- > 0;)
        *p++ = (unsigned char)(n >> 8 * i);
    return p;
}

static unsigned char *lay_bin(unsigned char *p, PyObject *bytes)
{
    if (bytes == Py_None) {
        *p++ = 0xc0;
        return p;
    }
    Py_ssize_t size = PyBytes_GET_SIZE(bytes);
    *p++ = size < 256 ? 0xc4 : size < 65536 ? 0xc5 : 0xc6;
    p = lay_be(p, size, size < 256 ? 1 : size < 65536 ? 2 : 4);
    memcpy(p, PyBytes_AS_STRING(bytes), size);
    return p + size;
}

static unsigned char *lay_str(unsigned char *p, PyObject *text)
{
    Py_ssize_t size = PyUnicode_GET_LENGTH(text);
    if (size < 32)
        *p++ = 0xa0 | (unsigned char)size;
    else {
        *p++ = size < 256 ? 0xd9 : size < 65536 ? 0xda : 0xdb;
        p = lay_be(p, size, size < 256 ? 1 : size < 65536 ? 2 : 4);
    }
    memcpy(p, PyUnicode_DATA(text), size);
    return p + size;
}

static unsigned char *lay_uint(unsigned char *p, uint64_t n)
{
    if (n < 128)
        *p++ = (unsigned char)n;
    else {
        int bytes = n < 256 ? 1 : n < 65536 ? 2 : n < 1ull << 32 ? 4 : 8;
        *p++ = bytes == 1 ? 0xcc : bytes == 2 ? 0xcd : bytes == 4 ? 0xce : 0xcf;
        p = lay_be(p, n, bytes);
    }
    return p;
}

static unsigned char *lay_headers(unsigned char *p, PyObject *headers)
{
    Py_ssize_t count = PySequence_Fast_GET_SIZE(headers);
    if (count < 16)
        *p++ = 0x90 | (unsigned char)count;
    else {
        *p++ = count < 65536 ? 0xdc : 0xdd;
        p = lay_be(p, count, count < 65536 ? 2 : 4);
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *pair = PySequence_Fast_GET_ITEM(headers, i);
        *p++ = 0x92;
        p = lay_str(p, PyTuple_GET_ITEM(pair, 0));
        p = lay_bin(p, PyTuple_GET_ITEM(pair, 1));
    }
    return p;
}

/* The envelope (kafka/records/envelope.py); NULL without an exception when it is too large. */
static PyObject *envelope_of(PyObject *record, uint64_t timestamp_ms, PyObject *target_key, Py_ssize_t headers_size,
                             const Rules *rules)
{
    PyObject *key = *slot(record, KEY), *value = *slot(record, VALUE);
    /* array of nine, version 1, fate 0, an empty note; no target partition */
    Py_ssize_t size = 4 + packed_uint(timestamp_ms) + packed_bin(target_key) + 1 + headers_size + packed_bin(key) +
                      packed_bin(value);
    if (size > rules->size_max)
        return NULL;
    PyObject *envelope = PyBytes_FromStringAndSize(NULL, size);
    if (envelope == NULL)
        return NULL;
    unsigned char *p = (unsigned char *)PyBytes_AS_STRING(envelope);
    memcpy(p, "\x99\x01\x00\xa0", 4);
    p = lay_uint(p + 4, timestamp_ms);
    p = lay_bin(p, target_key);
    *p++ = 0xc0;
    p = lay_headers(p, *slot(record, HEADERS));
    p = lay_bin(p, key);
    lay_bin(p, value);
    return envelope;
}

static int is_content(PyObject *value)
{
    return value != NULL && (value == Py_None || PyBytes_CheckExact(value));
}

/* The put of a record. NULL without an exception: the rules must make it. */
static PyObject *put_of(PyObject *record, const Rules *rules)
{
    PyObject *key = *slot(record, KEY), *value = *slot(record, VALUE), *stamp = *slot(record, TIMESTAMP);
    if (!is_content(key) || !is_content(value) || (rules->keyed && value == Py_None && key != Py_None))
        return NULL;
    if (stamp == NULL || !PyLong_CheckExact(stamp))
        return NULL;
    int64_t timestamp_ms = PyLong_AsLongLong(stamp);
    if (timestamp_ms < 0 || timestamp_ms >= rules->due_end_ms) {
        PyErr_Clear();
        return NULL;
    }
    Asked asked = {0};
    Py_ssize_t headers_size = look(*slot(record, HEADERS), &asked);
    int64_t due_ms = headers_size < 0 ? -1 : due_of(&asked, timestamp_ms, rules);
    if (due_ms < 0)
        return NULL;
    PyObject *target = rules->default_target;
    if (asked.target != NULL)
        target = asked.target == Py_None ? NULL : PyDict_GetItemWithError(rules->topics, asked.target);
    if (target == NULL || target == Py_None)
        return NULL;
    PyObject *target_key = asked.target_key == NULL ? Py_None : asked.target_key;
    PyObject *envelope = envelope_of(record, (uint64_t)timestamp_ms, target_key, headers_size, rules);
    if (envelope == NULL)
        return NULL;
    PyObject *due = PyLong_FromLongLong(due_ms * 1000);
    PyObject *never_due = PyLong_FromLong(-1);
    PyObject *put = due == NULL || never_due == NULL
                        ? NULL
                        : ((PyTypeObject *)put_type)->tp_alloc((PyTypeObject *)put_type, FIELDS);
    if (put == NULL) {
        Py_XDECREF(due);
        Py_XDECREF(never_due);
        Py_DECREF(envelope);
        return NULL;
    }
    PyObject *fields[FIELDS] = {
        Py_NewRef(*slot(record, OFFSET)), due, Py_NewRef(target), envelope, Py_NewRef(stamp),
        Py_NewRef(rules->keyed ? key : Py_None), Py_NewRef(Py_False), never_due,
    };
    for (int i = 0; i < FIELDS; i++)
        PyTuple_SET_ITEM(put, i, fields[i]);
    untrack(put);
    return put;
}

/* delayed_puts(records, topics, default_target, horizon_ms, due_end_ms, size_max, keyed)
 * -> ([Put | None], whether one is None) */
PyObject *delayed_puts(PyObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    if (nargs != 7 || !PyList_Check(args[0]) || !PyDict_CheckExact(args[1]) || record_type == NULL || put_type == NULL)
        return PyErr_Format(PyExc_TypeError, "delayed_puts(records, topics, ...), after learn_put");
    Rules rules = {args[1], args[2], PyLong_AsLongLong(args[3]), PyLong_AsLongLong(args[4]),
                   PyLong_AsSsize_t(args[5]), PyObject_IsTrue(args[6])};
    if (PyErr_Occurred())
        return NULL;
    Py_ssize_t count = PyList_GET_SIZE(args[0]);
    PyObject *puts = PyList_New(count);
    int is_left = 0;
    for (Py_ssize_t i = 0; puts != NULL && i < count; i++) {
        PyObject *record = PyList_GET_ITEM(args[0], i), *put = NULL;
        if (Py_IS_TYPE(record, (PyTypeObject *)record_type) && *slot(record, OFFSET) != NULL)
            put = put_of(record, &rules);
        if (put == NULL && PyErr_Occurred()) {
            Py_CLEAR(puts);
            break;
        }
        is_left |= put == NULL;
        PyList_SET_ITEM(puts, i, put == NULL ? Py_NewRef(Py_None) : put);
    }
    return puts == NULL ? NULL : Py_BuildValue("NO", puts, is_left ? Py_True : Py_False);
}
