"""What a scheduler on Kafka does not promise, and therefore refuses: at the definition, or at the call.

A promise that holds only sometimes is worse than an error. Each reason here is a row of docs/kafka-scheduler.md.
Invariant: whatever is not refused means the same as in the embedded scheduler, or the page says how it differs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

from filewheel.errors import BadArgument
from filewheel.scheduling.options import CallOptions

_UNLISTED = ("the calls that wait are in the nodes of the delay service", "`filewheel kafka inspect` on a node")
REASONS: dict[str, tuple[str, str]] = {
    "concurrency": ("it would hold for one worker, not for all of them", "limit the threads of each worker"),
    "rate_per_s": ("it would hold for one worker, not for all of them", "give the handler a rate of its own"),
    "pool": ("calls are read in the order of a partition, whatever has room", "a scheduler with topics of its own"),
    "priority": ("calls are read in the order of a partition", "a scheduler with topics of its own"),
    "catch_up_per_s": ("it would hold for one worker, not for all of them", "limit the threads of each worker"),
    "coalesce": ("overdue calls are spread over the workers", 'a key with on_conflict="replace"'),
    "sync": ("the brokers decide when records are on disk", "the topics' min.insync.replicas"),
    "key": ("only a keyed delay topic has keys", "KafkaScheduler(keyed=True), and `filewheel kafka run --keyed`"),
    "on_conflict": ("a topic cannot be asked who holds a key: the later call wins", 'on_conflict="replace"'),
    "every": ("a schedule needs a key", "KafkaScheduler(keyed=True), and `filewheel kafka run --keyed`"),
    "jitter_s": ("each worker computes the same times", "leave it out"),
    "count": ("no worker knows how many calls the others have made", "end=..."),
    "schedule": ("no worker can be asked for the schedules of the others", "declare it with @scheduler.every"),
    "cancel": ("an id does not say where the record is", "a call with a key, and cancel(key=...)"),
    "transaction": (
        "without exactly_once=True a step and the next one are not one write",
        "KafkaScheduler(exactly_once=True), or enqueue outside of the block",
    ),
    "drain": ("what is due is not known without a delay service", "run(), or a Scheduler on a wheel in tests"),
    "map": ("many records are not one write", "enqueue each call"),
    "result_for": ("a result has no place that can be asked for it", "have the handler store what it computed"),
    "result": ("a result has no place that can be asked for it", "have the handler store what it computed"),
    "list": _UNLISTED,
    "get": _UNLISTED,
    "reschedule": _UNLISTED,
    "cancel_all": _UNLISTED,
    "wheel": ("there is no wheel here", "`filewheel kafka inspect` on a node of the delay service"),
}
"""What is refused → why, and what to do instead."""


def refused(what: str) -> BadArgument:
    """Return the error for something that is not kept on Kafka."""
    why, instead = REASONS[what]
    return BadArgument(f"{what} is not kept on Kafka: {why}", hint=instead)


def check_options(options: CallOptions, *, keyed: bool) -> None:
    """Raise BadArgument for options of a call that are not kept on Kafka."""
    if options.coalesce is not None and options.coalesce is not False:
        raise refused("coalesce")
    if options.sync is not None:
        raise refused("sync")
    if options.key is not None and not keyed:
        raise refused("key")
    if options.key is not None and options.on_conflict != "replace":
        raise refused("on_conflict")


def _refusing(what: str) -> Callable[..., NoReturn]:
    def refuse(self: object, *args: object, **options: object) -> NoReturn:
        raise refused(what)

    refuse.__name__, refuse.__doc__ = what, f"Refuse: {REASONS[what][0]}."
    return refuse


class Refused:
    """The calls of a scheduler that are not kept on Kafka."""

    list = _refusing("list")
    get = _refusing("get")
    reschedule = _refusing("reschedule")
    result = _refusing("result")
    cancel_all = _refusing("cancel_all")
    schedule = _refusing("schedule")
    drain = _refusing("drain")
    wheel = property(_refusing("wheel"))
