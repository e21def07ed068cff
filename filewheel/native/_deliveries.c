/* Due messages of a partition's wheel, made into the records that go to their targets.
 *
 * Only what is plain: a whole envelope (kafka/records/envelope.py) with the fate DELIVER, without a partition at its
 * target, whose headers are ASCII and name no root. Any other message has None, and the rules in Python make its record
 * (kafka/records/fate.py), or say what is wrong with it. filewheel/native/log.py has the same in Python.
 * Invariant: what is returned is what the rules would return.
 */
#include "_loops.h"

#include <stdio.h>

enum { TOPIC, KEY, VALUE, HEADERS, PARTITION, OUT_SLOTS };
enum { ID, PAYLOAD, TARGET, MESSAGE_SLOTS };
enum { TIMESTAMP_S, SOURCE_KEY, SOURCE_TOPIC, SOURCE_ID, DUE_MS, FIRED_MS, ATTEMPT, STAMPS };
static const char *const STAMP_NAMES[STAMPS] = {
    "scheduler-timestamp", "scheduler-key", "scheduler-topic", "filewheel-id", "filewheel-due-ms", "filewheel-fired-ms",
    "filewheel-attempt",
};
/* Other headers that a delivered record does not keep. A record with the last one was put back. */
static const char *const LEFT_OUT[] = {"filewheel-error", "filewheel-origin", "filewheel-first-due-ms"};
static const char *const ROUTING[] = {
    "scheduler-epoch", "filewheel-delay-ms", "scheduler-target-topic", "scheduler-target-key",
    "filewheel-target-partition", "filewheel-unless-due-ms",
};
#define ROOT "filewheel-root"
#define DEAD_US 253402300800000000u /* as in message.py: from here on a due is that of a burial */

static PyObject *out_type, *message_type;
static Py_ssize_t out_at[OUT_SLOTS], message_at[MESSAGE_SLOTS];
static PyObject *stamp_names[STAMPS], *no_attempt; /* strings, and the last pair */

int deliveries_init(void)
{
    for (int i = 0; i < STAMPS; i++)
        if ((stamp_names[i] = PyUnicode_InternFromString(STAMP_NAMES[i])) == NULL)
            return -1;
    no_attempt = Py_BuildValue("Oy", stamp_names[ATTEMPT], "0");
    return no_attempt == NULL ? -1 : 0;
}

/* learn_outgoing(Outgoing, Message): the classes with these slots. */
PyObject *learn_outgoing(PyObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    static const char *const out[OUT_SLOTS] = {"topic", "key", "value", "headers", "partition"};
    static const char *const message[MESSAGE_SLOTS] = {"id", "payload", "topic"};
    if (nargs != 2 || !PyType_Check(args[0]) || !PyType_Check(args[1]))
        return PyErr_Format(PyExc_TypeError, "learn_outgoing(Outgoing, Message)");
    Py_ssize_t out_found[OUT_SLOTS], message_found[MESSAGE_SLOTS]; /* a wrong class changes nothing */
    if (find_slots(args[0], out, OUT_SLOTS, out_found) < 0 ||
        find_slots(args[1], message, MESSAGE_SLOTS, message_found) < 0)
        return NULL;
    memcpy(out_at, out_found, sizeof out_at);
    memcpy(message_at, message_found, sizeof message_at);
    Py_XSETREF(out_type, Py_NewRef(args[0]));
    Py_XSETREF(message_type, Py_NewRef(args[1]));
    Py_RETURN_NONE;
}

/* -- reading an envelope --------------------------------------------------------------------------------------- */

typedef struct {
    const unsigned char *at;
    Py_ssize_t size; /* -1: nil */
} Part;

static uint64_t be(const unsigned char *p, int bytes)
{
    uint64_t n = 0;
    for (int i = 0; i < bytes; i++)
        n = n << 8 | p[i];
    return n;
}

/* Each reader returns the place behind what it read, or NULL when that is not there. */
static const unsigned char *read_uint(const unsigned char *p, const unsigned char *end, uint64_t *n)
{
    if (p >= end)
        return NULL;
    unsigned char kind = *p++;
    if (kind < 128) {
        *n = kind;
        return p;
    }
    int bytes = kind == 0xcc ? 1 : kind == 0xcd ? 2 : kind == 0xce ? 4 : kind == 0xcf ? 8 : 0;
    if (bytes == 0 || end - p < bytes)
        return NULL;
    *n = be(p, bytes);
    return p + bytes;
}

static const unsigned char *sized(const unsigned char *p, const unsigned char *end, int bytes, Part *part)
{
    if (end - p < bytes)
        return NULL;
    part->size = (Py_ssize_t)be(p, bytes);
    part->at = p + bytes;
    return end - part->at < part->size ? NULL : part->at + part->size;
}

static const unsigned char *read_bin(const unsigned char *p, const unsigned char *end, Part *part)
{
    if (p >= end)
        return NULL;
    switch (*p++) {
    case 0xc0:
        part->size = -1;
        return p;
    case 0xc4:
        return sized(p, end, 1, part);
    case 0xc5:
        return sized(p, end, 2, part);
    case 0xc6:
        return sized(p, end, 4, part);
    }
    return NULL;
}

static const unsigned char *read_name(const unsigned char *p, const unsigned char *end, Part *part)
{
    if (p >= end)
        return NULL;
    unsigned char kind = *p++;
    if ((kind & 0xe0) == 0xa0) {
        part->size = kind & 0x1f;
        part->at = p;
        p = end - p < part->size ? NULL : p + part->size;
    }
    else if (kind == 0xd9)
        p = sized(p, end, 1, part);
    else
        return NULL;
    for (Py_ssize_t i = 0; p != NULL && i < part->size; i++)
        if (part->at[i] >= 0x80)
            return NULL;
    return p;
}

static const unsigned char *read_count(const unsigned char *p, const unsigned char *end, Py_ssize_t *count)
{
    if (p >= end)
        return NULL;
    unsigned char kind = *p++;
    if ((kind & 0xf0) == 0x90) {
        *count = kind & 0x0f;
        return p;
    }
    if (kind != 0xdc || end - p < 2)
        return NULL;
    *count = (Py_ssize_t)be(p, 2);
    return p + 2;
}

/* -- making a record ------------------------------------------------------------------------------------------- */

/* What the records of one call have alike, and the last pairs of those that often repeat. */
typedef struct {
    const char *topic;
    Py_ssize_t topic_size;
    long partition;
    int keep_routing;
    PyObject *source, *fired, *timestamp, *due;
    uint64_t timestamp_s, due_ms;
} Batch;

static int is_one(const Part *name, const char *const names[], int count)
{
    for (int i = 0; i < count; i++)
        if ((size_t)name->size == strlen(names[i]) && memcmp(name->at, names[i], name->size) == 0)
            return 1;
    return 0;
}

static PyObject *bytes_of(const Part *part)
{
    return part->size < 0 ? Py_NewRef(Py_None) : PyBytes_FromStringAndSize((const char *)part->at, part->size);
}

/* A pair of a name and a value; takes the value over. */
static PyObject *pair_of(PyObject *name, PyObject *value)
{
    PyObject *pair = value == NULL || name == NULL ? NULL : PyTuple_Pack(2, name, value);
    Py_XDECREF(value);
    if (pair != NULL)
        untrack(pair);
    return pair;
}

static PyObject *number_pair(int name, long long n)
{
    char text[24];
    int digits = snprintf(text, sizeof text, "%lld", n);
    return pair_of(stamp_names[name], PyBytes_FromStringAndSize(text, digits));
}

/* The pair of a number, which is that of the record before if that had the same number. Borrowed. */
static PyObject *recent_pair(int name, uint64_t n, PyObject **pair, uint64_t *known)
{
    if (*pair == NULL || *known != n) {
        Py_XSETREF(*pair, number_pair(name, (long long)n));
        *known = n;
    }
    return *pair;
}

static int append(PyObject *list, PyObject *pair)
{
    int failed = pair == NULL ? -1 : PyList_Append(list, pair);
    Py_XDECREF(pair);
    return failed;
}

/* The pair of the id that a record has wherever it goes. */
static PyObject *source_id(const Batch *batch, uint64_t offset)
{
    char number[48];
    int digits = snprintf(number, sizeof number, "-%ld-%llu", batch->partition, (unsigned long long)offset);
    PyObject *id = PyBytes_FromStringAndSize(NULL, batch->topic_size + digits);
    if (id == NULL)
        return NULL;
    memcpy(PyBytes_AS_STRING(id), batch->topic, batch->topic_size);
    memcpy(PyBytes_AS_STRING(id) + batch->topic_size, number, digits);
    return pair_of(stamp_names[SOURCE_ID], id);
}

/* Add what the service says of a record. */
static int add_stamps(PyObject *headers, Batch *batch, uint64_t timestamp_ms, const Part *key, uint64_t due_us,
                      uint64_t offset)
{
    if (append(headers, Py_XNewRef(recent_pair(TIMESTAMP_S, timestamp_ms / 1000, &batch->timestamp,
                                               &batch->timestamp_s))) < 0 ||
        append(headers, pair_of(stamp_names[SOURCE_KEY], bytes_of(key))) < 0 ||
        append(headers, Py_NewRef(batch->source)) < 0 || append(headers, source_id(batch, offset)) < 0 ||
        append(headers, Py_XNewRef(recent_pair(DUE_MS, due_us / 1000, &batch->due, &batch->due_ms))) < 0 ||
        append(headers, Py_NewRef(batch->fired)) < 0)
        return -1;
    return append(headers, Py_NewRef(no_attempt));
}

/* Read the headers that a delivered record keeps. NULL with an exception, or without: the rules must look at them. */
static PyObject *kept_headers(const unsigned char **at, const unsigned char *end, const Batch *batch)
{
    Py_ssize_t count;
    const unsigned char *p = read_count(*at, end, &count);
    PyObject *headers = p == NULL ? NULL : PyList_New(0);
    for (Py_ssize_t i = 0; headers != NULL && i < count; i++) {
        Part name, value;
        const char *const root[] = {ROOT};
        if (end - p < 1 || *p != 0x92 || (p = read_name(p + 1, end, &name)) == NULL ||
            (p = read_bin(p, end, &value)) == NULL || is_one(&name, root, 1)) {
            Py_CLEAR(headers);
            break;
        }
        if (is_one(&name, STAMP_NAMES, STAMPS) || is_one(&name, LEFT_OUT, 3) ||
            (!batch->keep_routing && is_one(&name, ROUTING, 6)))
            continue;
        PyObject *text = PyUnicode_DecodeASCII((const char *)name.at, name.size, NULL);
        int failed = append(headers, pair_of(text, bytes_of(&value)));
        Py_XDECREF(text);
        if (failed < 0)
            Py_CLEAR(headers);
    }
    *at = p;
    return headers;
}

/* The record of a message. NULL without an exception: the rules must make it. */
static PyObject *delivery_of(PyObject *message, Batch *batch)
{
    PyObject *fields[MESSAGE_SLOTS];
    for (int i = 0; i < MESSAGE_SLOTS; i++)
        if ((fields[i] = *(PyObject **)((char *)message + message_at[i])) == NULL)
            return NULL;
    if (!PyBytes_Check(fields[ID]) || PyBytes_GET_SIZE(fields[ID]) != ID_BYTES || !PyBytes_CheckExact(fields[PAYLOAD]))
        return NULL;
    const unsigned char *id = (unsigned char *)PyBytes_AS_STRING(fields[ID]);
    uint64_t high = load_be64(id), offset = load_be64(id + 8);
    const unsigned char *p = (unsigned char *)PyBytes_AS_STRING(fields[PAYLOAD]);
    const unsigned char *end = p + PyBytes_GET_SIZE(fields[PAYLOAD]);
    if ((high & 0x3f) || high >> 6 >= DEAD_US || end - p < 4 || memcmp(p, "\x99\x01\x00\xa0", 4) != 0)
        return NULL;
    uint64_t timestamp_ms;
    Part target_key, key, value;
    if ((p = read_uint(p + 4, end, &timestamp_ms)) == NULL || (p = read_bin(p, end, &target_key)) == NULL ||
        p >= end || *p++ != 0xc0)
        return NULL;
    PyObject *headers = kept_headers(&p, end, batch);
    if (headers == NULL)
        return NULL;
    PyObject *out = NULL;
    if ((p = read_bin(p, end, &key)) == NULL || (p = read_bin(p, end, &value)) != end)
        goto done;
    if (add_stamps(headers, batch, timestamp_ms, &key, high >> 6, offset) < 0)
        goto done;
    out = ((PyTypeObject *)out_type)->tp_alloc((PyTypeObject *)out_type, 0);
    if (out == NULL)
        goto done;
    PyObject *made[OUT_SLOTS] = {
        Py_NewRef(fields[TARGET]), bytes_of(&target_key), bytes_of(&value), Py_NewRef(headers), Py_NewRef(Py_None),
    };
    for (int i = 0; i < OUT_SLOTS; i++)
        *(PyObject **)((char *)out + out_at[i]) = made[i];
    if (made[KEY] == NULL || made[VALUE] == NULL)
        Py_CLEAR(out);
    else
        untrack(out); /* headers are a list of plain pairs */
done:
    Py_DECREF(headers);
    return out;
}

/* deliveries(messages, topic, partition, fired_ms, keep_routing) -> ([Outgoing | None], whether one is None) */
PyObject *deliveries(PyObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    if (nargs != 5 || !PyList_Check(args[0]) || !PyBytes_Check(args[1]) || out_type == NULL)
        return PyErr_Format(PyExc_TypeError, "deliveries(messages, topic, ...), after learn_outgoing");
    Batch batch = {PyBytes_AS_STRING(args[1]), PyBytes_GET_SIZE(args[1]), PyLong_AsLong(args[2]),
                   PyObject_IsTrue(args[4])};
    long long fired_ms = PyLong_AsLongLong(args[3]);
    if (PyErr_Occurred())
        return NULL;
    Py_ssize_t count = PyList_GET_SIZE(args[0]);
    PyObject *found = PyList_New(count);
    batch.source = pair_of(stamp_names[SOURCE_TOPIC], Py_NewRef(args[1]));
    batch.fired = number_pair(FIRED_MS, fired_ms);
    if (batch.source == NULL || batch.fired == NULL)
        Py_CLEAR(found);
    int is_left = 0;
    for (Py_ssize_t i = 0; found != NULL && i < count; i++) {
        PyObject *message = PyList_GET_ITEM(args[0], i);
        PyObject *out = Py_IS_TYPE(message, (PyTypeObject *)message_type) ? delivery_of(message, &batch) : NULL;
        if (out == NULL && PyErr_Occurred()) {
            Py_CLEAR(found);
            break;
        }
        is_left |= out == NULL;
        PyList_SET_ITEM(found, i, out == NULL ? Py_NewRef(Py_None) : out);
    }
    Py_XDECREF(batch.source);
    Py_XDECREF(batch.fired);
    Py_XDECREF(batch.timestamp);
    Py_XDECREF(batch.due);
    return found == NULL ? NULL : Py_BuildValue("NO", found, is_left ? Py_True : Py_False);
}
