/* The time-outs of an event loop: a hierarchical wheel of LEVELS times 64 slots, as Linux and tokio have.
 *
 * A slot of a level spans the 64 slots of the level below. A bit for each slot in use gives the next slot to empty
 * without a look at the others, so an idle wheel does nothing. `timeouts.py` has the same calls in a simple form, and
 * describes them; `compiled.py` chooses. A pending time-out is one object that carries its own links. The wheel owns
 * one reference to it, and it borrows the wheel.
 * Invariants: `wheel` is set as long as the time-out is in a list of that wheel; a slot's bit in `used` is set as long
 * as the slot is not empty; no list is walked while code in Python runs.
 */
#include "_loops.h"

#include <math.h>
#include <stddef.h>
#include <time.h>

#define LEVELS 10
#define BITS 6
#define SLOTS 64
#define NO_LEVEL 255
#define NEVER ((int64_t)1 << 59) /* a due further away waits there */
#define MOVES 256                /* moved between two looks at the clock */
#define LATE_S 2.0               /* a driver that is so late was interrupted */

typedef struct Links {
    struct Links *before, *after;
} Links;

enum { PENDING, EXPIRED, CANCELLED };

typedef struct Wheel Wheel;

typedef struct {
    PyObject_HEAD
    Links links;
    double when;
    Wheel *wheel;
    PyObject *callback, *args, *context; /* args: NULL, the only argument, or a tuple */
    unsigned char level, slot, state, is_tuple;
} Timeout;

struct Wheel {
    PyObject_HEAD
    PyObject *clock, *loop, *is_closed; /* is_closed: NULL for a loop that has asyncio's `_closed` */
    unsigned long thread;
    double tick_s, origin, late;
    int64_t hand, wake, round; /* as in timeouts.py, and so is `late` */
    Py_ssize_t pending;
    int is_steady;
    uint64_t used[LEVELS];
    Links slots[LEVELS][SLOTS], soon, due, moving;
};

static PyTypeObject *timeout_type;
static PyObject *closed_name;

/* -- lists --------------------------------------------------------------------------------------------------- */

static inline Timeout *timeout_of(Links *links)
{
    return (Timeout *)((char *)links - offsetof(Timeout, links));
}

static inline int is_empty(const Links *list)
{
    return list->after == list;
}

static inline void make_empty(Links *list)
{
    list->before = list->after = list;
}

static inline void append(Links *list, Links *one)
{
    one->before = list->before, one->after = list;
    list->before->after = one, list->before = one;
}

static inline void take_out(Links *one)
{
    one->before->after = one->after, one->after->before = one->before;
}

/* Move all of a list to the end of another. */
static void splice(Links *to, Links *from)
{
    if (is_empty(from))
        return;
    from->after->before = to->before, to->before->after = from->after;
    from->before->after = to, to->before = from->before;
    make_empty(from);
}

/* Take a pending time-out out of its list; the caller gets the wheel's reference. One that is moving or due still
 * names its last slot: if that is empty, its bit is clear anyway. */
static void remove_from(Wheel *self, Timeout *one)
{
    take_out(&one->links);
    if (one->level != NO_LEVEL && is_empty(&self->slots[one->level][one->slot]))
        self->used[one->level] &= ~((uint64_t)1 << one->slot);
    one->wheel = NULL;
    self->pending--;
}

static void forget_call(Timeout *one)
{
    Py_CLEAR(one->callback);
    Py_CLEAR(one->args);
    Py_CLEAR(one->context);
}

/* -- time ---------------------------------------------------------------------------------------------------- */

/* The loop's time; -1 with an error set when its clock raised. */
static double read_clock(Wheel *self)
{
#ifdef __linux__
    if (self->is_steady) {
        struct timespec now;
        clock_gettime(CLOCK_MONOTONIC, &now);
        return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
    }
#endif
    PyObject *read = PyObject_CallNoArgs(self->clock);
    double now = read == NULL ? -1 : PyFloat_AsDouble(read);
    Py_XDECREF(read);
    return now;
}

/* The tick at which a due expires: rounded up. */
static int64_t tick_of(const Wheel *self, double when)
{
    double ticks = floor((when - self->origin) / self->tick_s);
    if (!(ticks < (double)NEVER))
        return NEVER;
    if (ticks < 0)
        return 0;
    return (int64_t)ticks + (self->origin + ticks * self->tick_s < when);
}

/* The tick that a time is in: rounded down. The time of a tick, as `_next` returns it, is in that tick. */
static int64_t hand_of(const Wheel *self, double now)
{
    double ticks = floor((now - self->origin) / self->tick_s);
    if (!(ticks < (double)NEVER))
        return NEVER;
    if (ticks < 0)
        return 0;
    if (self->origin + (ticks + 1) * self->tick_s <= now)
        return (int64_t)ticks + 1;
    return (int64_t)ticks - (ticks > 0 && self->origin + ticks * self->tick_s > now);
}

/* -- places -------------------------------------------------------------------------------------------------- */

/* Put a time-out that is due after the hand into its slot; return the tick at which the slot is emptied. */
static int64_t place(Wheel *self, Timeout *one, int64_t tick)
{
    int level = (63 - __builtin_clzll((uint64_t)(tick ^ self->hand) | (SLOTS - 1))) / BITS;
    int slot = (int)(tick >> BITS * level) & (SLOTS - 1);
    one->level = (unsigned char)level, one->slot = (unsigned char)slot;
    self->used[level] |= (uint64_t)1 << slot;
    append(&self->slots[level][slot], &one->links);
    return tick >> BITS * level << BITS * level;
}

/* Find the slot that is emptied next; return its tick, or -1. */
static int64_t next_slot(const Wheel *self, int *level, int *slot)
{
    for (int i = 0; i < LEVELS; i++)
        if (self->used[i]) {
            *level = i, *slot = __builtin_ctzll(self->used[i]);
            int64_t base = self->hand >> BITS * (i + 1) << BITS * (i + 1);
            return base | (int64_t)*slot << BITS * i;
        }
    return -1;
}

/* -- start and cancel ----------------------------------------------------------------------------------------- */

/* 0, or the answer of `_outside` for a call in another thread. */
static int check_thread(Wheel *self, int is_start)
{
    if (PyThread_get_thread_ident() == self->thread)
        return 0;
    PyObject *done = PyObject_CallMethod((PyObject *)self, "_outside", "O", is_start ? Py_True : Py_False);
    Py_XDECREF(done);
    return done == NULL ? -1 : 0;
}

/* 0 for a start in the loop's thread while the loop is open; else the answer of `_outside`. */
static int check_start(Wheel *self)
{
    if (check_thread(self, 1) < 0)
        return -1;
    PyObject *closed = Py_NewRef(Py_False);
    if (self->is_closed != NULL)
        Py_SETREF(closed, PyObject_CallNoArgs(self->is_closed));
    else if (self->loop != Py_None)
        Py_SETREF(closed, PyObject_GetAttr(self->loop, closed_name)); /* asyncio's own: four times as fast as the call */
    if (closed == NULL)
        return -1;
    int is_closed = PyObject_IsTrue(closed);
    Py_DECREF(closed);
    if (is_closed <= 0)
        return is_closed;
    PyObject *done = PyObject_CallMethod((PyObject *)self, "_outside", "O", Py_True);
    Py_XDECREF(done);
    return done == NULL ? -1 : 0;
}

static PyObject *refuse(Wheel *self, const char *name, PyObject *value)
{
    PyErr_Clear();
    PyObject *done = PyObject_CallMethod((PyObject *)self, "_refuse", "sO", name, value);
    if (done != NULL) {
        Py_DECREF(done);
        PyErr_SetString(PyExc_ValueError, name);
    }
    return NULL;
}

static Timeout *make_timeout(PyObject *const *args, Py_ssize_t nargs, PyObject *context)
{
    PyObject *copied = context == Py_None ? PyContext_CopyCurrent() : Py_NewRef(context);
    if (copied == NULL)
        return NULL;
    PyObject *given = NULL;
    if (nargs == 1)
        given = Py_NewRef(args[0]);
    else if (nargs > 1) {
        given = PyTuple_New(nargs);
        if (given == NULL) {
            Py_DECREF(copied);
            return NULL;
        }
        for (Py_ssize_t i = 0; i < nargs; i++)
            PyTuple_SET_ITEM(given, i, Py_NewRef(args[i]));
    }
    Timeout *one = PyObject_GC_New(Timeout, timeout_type);
    if (one == NULL) {
        Py_DECREF(copied);
        Py_XDECREF(given);
        return NULL;
    }
    one->wheel = NULL;
    one->callback = NULL;
    one->args = given;
    one->context = copied;
    one->level = NO_LEVEL, one->slot = 0, one->state = PENDING, one->is_tuple = nargs > 1;
    return one;
}

/* Start a time-out; `args` begins with the callback. */
static PyObject *start(Wheel *self, double now, double when, PyObject *const *args, Py_ssize_t nargs, PyObject *context)
{
    Timeout *one = make_timeout(args + 1, nargs - 1, context);
    if (one == NULL)
        return NULL;
    one->callback = Py_NewRef(args[0]);
    one->when = when;
    int64_t tick = tick_of(self, when), hand = hand_of(self, now), empty_at;
    if (hand > self->hand && (hand < self->wake || self->pending == 0) && self->wake >= 0)
        self->hand = hand; /* no slot is emptied before `wake`, so the hand may pass to here */
    if (when <= now) {
        append(&self->soon, &one->links);
        empty_at = self->hand;
    } else
        empty_at = place(self, one, tick > self->hand ? tick : self->hand + 1);
    one->wheel = self;
    self->pending++;
    Py_INCREF(one); /* the wheel's */
    PyObject_GC_Track((PyObject *)one);
    int is_first = empty_at < self->wake;
    if (is_first || now > self->late) {
        double at = is_first && when > now ? self->origin + (double)empty_at * self->tick_s : now, late = self->late;
        int64_t was = self->wake;
        if (is_first)
            self->wake = empty_at;
        self->late = at + LATE_S;
        PyObject *done = PyObject_CallMethod((PyObject *)self, "_wake", "d", at);
        if (done == NULL) {
            self->wake = was, self->late = late;
            if (one->wheel == self) {
                remove_from(self, one);
                one->state = CANCELLED;
                Py_DECREF(one);
            }
            Py_DECREF(one);
            return NULL;
        }
        Py_DECREF(done);
    }
    return (PyObject *)one;
}

/* Whether a call of this function returns a coroutine or a generator, and does nothing. */
static int hands_back(PyObject *callback)
{
    PyObject *function = PyMethod_Check(callback) ? PyMethod_GET_FUNCTION(callback) : callback;
    if (!PyFunction_Check(function))
        return 0;
    int flags = ((PyCodeObject *)PyFunction_GET_CODE(function))->co_flags;
    return (flags & (CO_COROUTINE | CO_GENERATOR | CO_ASYNC_GENERATOR)) != 0;
}

static PyObject *call(
    Wheel *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames, const char *name, int is_later)
{
    if (self->loop == NULL)
        return PyErr_Format(PyExc_RuntimeError, "__init__ was not called");
    PyObject *context = Py_None;
    if (kwnames != NULL && PyTuple_GET_SIZE(kwnames) > 0) {
        if (PyTuple_GET_SIZE(kwnames) != 1 ||
            PyUnicode_CompareWithASCIIString(PyTuple_GET_ITEM(kwnames, 0), "context") != 0)
            return PyErr_Format(PyExc_TypeError, "the only keyword argument is context");
        context = args[nargs];
    }
    if (nargs < 2)
        return PyErr_Format(PyExc_TypeError, "needs %s and a callback", name);
    double when = PyFloat_AsDouble(args[0]);
    if (when == -1.0 && PyErr_Occurred() && !PyErr_ExceptionMatches(PyExc_TypeError) &&
        !PyErr_ExceptionMatches(PyExc_ValueError) && !PyErr_ExceptionMatches(PyExc_OverflowError))
        return NULL;
    if ((when == -1.0 && PyErr_Occurred()) || isnan(when))
        return refuse(self, name, args[0]);
    if (!PyCallable_Check(args[1]) || hands_back(args[1]))
        return refuse(self, "callback", args[1]);
    if (context != Py_None && !PyContext_CheckExact(context))
        return refuse(self, "context", context);
    if (check_start(self) < 0)
        return NULL;
    double now = read_clock(self);
    if (now == -1.0 && PyErr_Occurred())
        return NULL;
    return start(self, now, is_later ? now + when : when, args + 1, nargs - 1, context);
}

static PyObject *call_later(Wheel *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    return call(self, args, nargs, kwnames, "delay", 1);
}

static PyObject *call_at(Wheel *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    return call(self, args, nargs, kwnames, "when", 0);
}

static PyObject *timeout_cancel(Timeout *one, PyObject *none)
{
    Wheel *self = one->wheel;
    if (self == NULL)
        Py_RETURN_NONE;
    Py_INCREF(self); /* `_outside` may run anything */
    if (check_thread(self, 0) < 0) {
        Py_DECREF(self);
        return NULL;
    }
    if (one->wheel == self) {
        remove_from(self, one);
        one->state = CANCELLED;
        forget_call(one);
        Py_DECREF(one); /* the wheel's; the caller has its own */
    }
    Py_DECREF(self);
    Py_RETURN_NONE;
}

/* -- expiry --------------------------------------------------------------------------------------------------- */

/* Give the error of a callback to `_raised`. -1: it goes up, and ends the turn. */
static int report(Wheel *self, PyObject *callback, Timeout *one)
{
    if (PyErr_ExceptionMatches(PyExc_KeyboardInterrupt) || PyErr_ExceptionMatches(PyExc_SystemExit))
        return -1;
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    PyErr_NormalizeException(&type, &value, &trace);
    if (trace != NULL)
        PyException_SetTraceback(value, trace);
    PyObject *done = PyObject_CallMethod((PyObject *)self, "_raised", "OOO", callback, one, value);
    Py_XDECREF(type);
    Py_XDECREF(value);
    Py_XDECREF(trace);
    Py_XDECREF(done);
    return done == NULL ? -1 : 0;
}

/* Call a time-out that was taken from the due ones. */
static int expire(Wheel *self, Timeout *one)
{
    remove_from(self, one);
    one->state = EXPIRED;
    PyObject *callback = one->callback, *args = one->args, *context = one->context, *result = NULL;
    one->callback = one->args = one->context = NULL;
    int failed = 0;
    if (callback != NULL && context != NULL) { /* else the garbage collector has cleared it */
        if (PyContext_Enter(context) == 0) {
            if (args == NULL)
                result = PyObject_CallNoArgs(callback);
            else
                result = one->is_tuple ? PyObject_Call(callback, args, NULL) : PyObject_CallOneArg(callback, args);
            if (PyContext_Exit(context) < 0)
                Py_CLEAR(result);
        }
        if (result != NULL && result != Py_None && !PyBool_Check(result)) {
            PyObject *done = PyObject_CallMethod((PyObject *)self, "_returned", "O", result);
            if (done == NULL)
                Py_CLEAR(result);
            Py_XDECREF(done);
        }
        if (result == NULL)
            failed = report(self, callback, one);
    }
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace); /* finalizers run below */
    Py_XDECREF(result);
    Py_XDECREF(callback);
    Py_XDECREF(args);
    Py_XDECREF(context);
    Py_DECREF(one);
    PyErr_Restore(type, value, trace);
    return failed;
}

/* Put some of the moving ones into lower slots. */
static void move_some(Wheel *self)
{
    for (int i = 0; i < MOVES && !is_empty(&self->moving); i++) {
        Timeout *one = timeout_of(self->moving.after);
        __builtin_prefetch(one->links.after->after);
        take_out(&one->links);
        int64_t tick = tick_of(self, one->when);
        if (tick > self->hand)
            place(self, one, tick);
        else
            append(&self->due, &one->links);
    }
}

/* Move the hand to the next slot that `end` reaches, and empty it; 0 when there is none. */
static int turn_to_next(Wheel *self, int64_t end)
{
    int level, slot;
    int64_t tick = next_slot(self, &level, &slot);
    if (tick < 0 || tick > end) {
        if (end > self->hand)
            self->hand = end;
        return 0;
    }
    self->hand = tick;
    Links *list = &self->slots[level][slot];
    splice(level == 0 ? &self->due : &self->moving, list);
    self->used[level] &= ~((uint64_t)1 << slot);
    return 1;
}

static PyObject *turn(Wheel *self, PyObject *budget)
{
    double budget_s = PyFloat_AsDouble(budget), now = -1;
    if (!PyErr_Occurred() && self->loop != NULL)
        now = read_clock(self);
    if (PyErr_Occurred())
        return NULL;
    if (self->loop == NULL)
        return PyErr_Format(PyExc_RuntimeError, "__init__ was not called");
    double until = now + budget_s;
    self->thread = PyThread_get_thread_ident(); /* here runs the loop */
    self->wake = -1; /* until `_next`: the driver looks itself */
    self->late = until + LATE_S;
    if (self->round < 0) { /* else the last turn has left some of its round */
        self->round = hand_of(self, now);
        splice(&self->due, &self->soon);
    }
    for (;;) {
        if (!is_empty(&self->due)) {
            if (expire(self, timeout_of(self->due.after)) < 0)
                return NULL;
        } else if (!is_empty(&self->moving))
            move_some(self);
        else if (!turn_to_next(self, self->round)) {
            self->round = -1;
            Py_RETURN_NONE;
        }
        now = read_clock(self);
        if (now == -1.0 && PyErr_Occurred())
            return NULL;
        if (now >= until)
            Py_RETURN_NONE;
    }
}

static PyObject *next_wake(Wheel *self, PyObject *none)
{
    int level, slot;
    if (!is_empty(&self->soon) || !is_empty(&self->due) || !is_empty(&self->moving))
        self->wake = self->hand;
    else {
        int64_t tick = next_slot(self, &level, &slot);
        self->wake = tick < 0 ? NEVER : tick;
    }
    double at = self->origin + (double)self->wake * self->tick_s;
    self->late = at + LATE_S;
    if (self->pending == 0)
        Py_RETURN_NONE;
    return PyFloat_FromDouble(at);
}

/* -- the wheel's life ------------------------------------------------------------------------------------------ */

static void cancel_all(Wheel *self)
{
    Links all;
    make_empty(&all);
    splice(&all, &self->soon);
    splice(&all, &self->due);
    splice(&all, &self->moving);
    for (int level = 0; level < LEVELS; level++) {
        for (uint64_t bits = self->used[level]; bits; bits &= bits - 1)
            splice(&all, &self->slots[level][__builtin_ctzll(bits)]);
        self->used[level] = 0;
    }
    /* First all, then their calls: what these free may run code that looks at other time-outs. */
    for (Links *l = all.after; l != &all; l = l->after)
        timeout_of(l)->level = NO_LEVEL, timeout_of(l)->state = CANCELLED, timeout_of(l)->wheel = NULL, self->pending--;
    while (!is_empty(&all)) {
        Timeout *one = timeout_of(all.after);
        take_out(&one->links);
        forget_call(one);
        Py_DECREF(one);
    }
}

static PyObject *clear(Wheel *self, PyObject *none)
{
    cancel_all(self);
    Py_RETURN_NONE;
}

static PyObject *wheel_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    Wheel *self = (Wheel *)PyType_GenericAlloc(type, 0);
    if (self == NULL)
        return NULL;
    for (int i = 0; i < LEVELS * SLOTS; i++)
        make_empty(&self->slots[0][0] + i);
    make_empty(&self->soon);
    make_empty(&self->due);
    make_empty(&self->moving);
    self->wake = NEVER;
    self->late = INFINITY;
    self->round = -1;
    return (PyObject *)self;
}

static int wheel_init(Wheel *self, PyObject *args, PyObject *kwargs)
{
    double tick_s;
    PyObject *clock, *loop;
    int is_steady;
    if (!PyArg_ParseTuple(args, "dOpO", &tick_s, &clock, &is_steady, &loop))
        return -1;
    if (self->loop != NULL || !(tick_s > 0) || !isfinite(tick_s)) {
        PyErr_SetString(PyExc_ValueError, "a tick is positive, and a wheel is made once");
        return -1;
    }
    self->tick_s = tick_s;
    self->is_steady = is_steady;
    Py_XSETREF(self->clock, Py_NewRef(clock));
    self->thread = PyThread_get_thread_ident();
    self->origin = read_clock(self);
    if (self->origin == -1.0 && PyErr_Occurred())
        return -1;
    PyObject *closed = loop == Py_None ? Py_NewRef(Py_False) : PyObject_GetAttr(loop, closed_name);
    if (closed == NULL || !PyBool_Check(closed)) {
        PyErr_Clear();
        Py_XSETREF(self->is_closed, PyObject_GetAttrString(loop, "is_closed"));
        if (self->is_closed == NULL) {
            Py_XDECREF(closed);
            return -1;
        }
    }
    Py_XDECREF(closed);
    self->loop = Py_NewRef(loop); /* last: it says that all the rest is there */
    return 0;
}

static int visit_list(Links *list, visitproc visit, void *arg)
{
    for (Links *l = list->after; l != list; l = l->after)
        Py_VISIT((PyObject *)timeout_of(l));
    return 0;
}

static int wheel_traverse(Wheel *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->clock);
    Py_VISIT(self->loop);
    Py_VISIT(self->is_closed);
    if (self->soon.after == NULL)
        return 0; /* not made yet */
    int found = visit_list(&self->soon, visit, arg);
    if (!found)
        found = visit_list(&self->due, visit, arg);
    if (!found)
        found = visit_list(&self->moving, visit, arg);
    for (int level = 0; !found && level < LEVELS; level++)
        for (uint64_t bits = self->used[level]; !found && bits; bits &= bits - 1)
            found = visit_list(&self->slots[level][__builtin_ctzll(bits)], visit, arg);
    return found;
}

static int wheel_clear(Wheel *self)
{
    cancel_all(self);
    Py_CLEAR(self->clock);
    Py_CLEAR(self->is_closed);
    Py_CLEAR(self->loop);
    return 0;
}

static void wheel_dealloc(Wheel *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack((PyObject *)self);
    wheel_clear(self);
    type->tp_free(self);
    Py_DECREF(type);
}

static Py_ssize_t wheel_length(Wheel *self)
{
    return self->pending;
}

static PyMethodDef wheel_methods[] = {
    {"call_later", (PyCFunction)(void (*)(void))call_later, METH_FASTCALL | METH_KEYWORDS,
     "Call a function after a delay in seconds; return its handle."},
    {"call_at", (PyCFunction)(void (*)(void))call_at, METH_FASTCALL | METH_KEYWORDS,
     "Call a function at a time of the loop; return its handle."},
    {"_turn", (PyCFunction)turn, METH_O, NULL},
    {"_next", (PyCFunction)next_wake, METH_NOARGS, NULL},
    {"_clear", (PyCFunction)clear, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot wheel_slots[] = {
    {Py_tp_new, wheel_new},
    {Py_tp_init, wheel_init},
    {Py_tp_dealloc, wheel_dealloc},
    {Py_tp_traverse, wheel_traverse},
    {Py_tp_clear, wheel_clear},
    {Py_tp_methods, wheel_methods},
    {Py_sq_length, wheel_length},
    {0, NULL},
};

PyType_Spec timeout_wheel_spec = {
    .name = "filewheel.native._loops.TimeoutWheel", .basicsize = sizeof(Wheel),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC, .slots = wheel_slots,
};

/* -- the handle -------------------------------------------------------------------------------------------------- */

static PyObject *timeout_cancelled(Timeout *one, PyObject *none)
{
    return PyBool_FromLong(one->state == CANCELLED);
}

static PyObject *timeout_when(Timeout *one, PyObject *none)
{
    return PyFloat_FromDouble(one->when);
}

static PyObject *timeout_repr(Timeout *one)
{
    static const char *const names[] = {"pending", "expired", "cancelled"};
    PyObject *when = PyFloat_FromDouble(one->when);
    if (when == NULL)
        return NULL;
    PyObject *text = PyUnicode_FromFormat("<LoopTimeout when=%R %s>", when, names[one->state]);
    Py_DECREF(when);
    return text;
}

static int timeout_traverse(Timeout *one, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(one));
    Py_VISIT(one->callback);
    Py_VISIT(one->args);
    Py_VISIT(one->context);
    return 0;
}

static int timeout_clear(Timeout *one)
{
    forget_call(one);
    return 0;
}

static void timeout_dealloc(Timeout *one)
{
    PyTypeObject *type = Py_TYPE(one);
    PyObject_GC_UnTrack((PyObject *)one);
    forget_call(one);
    PyObject_GC_Del(one);
    Py_DECREF(type);
}

static PyMethodDef timeout_methods[] = {
    {"cancel", (PyCFunction)timeout_cancel, METH_NOARGS, "Cancel the call, unless it has begun."},
    {"cancelled", (PyCFunction)timeout_cancelled, METH_NOARGS, "Return whether it was cancelled in time."},
    {"when", (PyCFunction)timeout_when, METH_NOARGS, "Return its due, as a time of the loop."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot timeout_slots[] = {
    {Py_tp_dealloc, timeout_dealloc},
    {Py_tp_traverse, timeout_traverse},
    {Py_tp_clear, timeout_clear},
    {Py_tp_repr, timeout_repr},
    {Py_tp_methods, timeout_methods},
    {0, NULL},
};

static PyType_Spec timeout_spec = {
    .name = "filewheel.timers.LoopTimeout", .basicsize = sizeof(Timeout),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = timeout_slots,
};

/* Once per process: another interpreter that imports this gets the same type. */
int timeouts_init(PyObject *module)
{
    if (closed_name == NULL)
        closed_name = PyUnicode_InternFromString("_closed");
    if (closed_name == NULL)
        return -1;
    if (timeout_type == NULL)
        timeout_type = (PyTypeObject *)PyType_FromSpec(&timeout_spec);
    return timeout_type == NULL ? -1 : PyModule_AddObjectRef(module, "LoopTimeout", (PyObject *)timeout_type);
}
