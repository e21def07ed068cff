"""Maps errors of the client to errors of the tree, and to refusals of a record or of its target.

Invariant: an error that is not listed here is no refusal: the unit is tried again, and no record is given up for it.
"""

from __future__ import annotations

import logging
import re
import weakref
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from filewheel.bridges.extra import need
from filewheel.env import SYSTEM_CLOCK, Event, pause
from filewheel.errors import BadArgument, ClusterError, MissingTopic, NoBroker, NotAllowed
from filewheel.kafka.client.kept import keepable
from filewheel.kafka.client.quiet_log import QuietLog
from filewheel.kafka.node.transport import Refusal
from filewheel.message import US_PER_S

if TYPE_CHECKING:
    from confluent_kafka import KafkaError

log = logging.getLogger("filewheel.kafka.client")
NEW_TOPIC_S = (0.2, 0.5, 1.0, 3.0)
"""The waits before a missing topic is asked for again."""
SLICE_S = 1.0
client_log = QuietLog(log)
"""The logger of each client."""


def client() -> Any:
    """Return the module confluent_kafka. Raises BadArgument, with the extra's name, when it is not installed."""
    return need("confluent_kafka", "kafka")


def made(make: Callable[..., Any], config: Mapping[str, Any], **more: Any) -> Any:
    """Return a client with these settings; a fork does not break it (kept.py). Raises BadArgument for a wrong one."""
    login = _Login(config.get("error_cb", heard))
    try:
        _logins[one := keepable(make, {**config, "error_cb": login}, **more)] = login
        return one
    except client().KafkaException as exc:
        raise BadArgument(f"librdkafka refuses a setting: {error_of(exc).str()}", hint=_SETTINGS) from exc
    except (TypeError, ValueError) as exc:
        raise BadArgument(f"librdkafka refuses a setting: {exc}", hint=_SETTINGS) from exc


_SETTINGS = "CONFIGURATION.md of librdkafka lists them"


def heard(error: KafkaError) -> None:
    """Log an error of a client's connections."""
    client_log.log(logging.ERROR if error.fatal() else logging.WARNING, "%s", error.str())


class _Login:
    """Forwards errors of a client's connections, and remembers a rejected login.

    librdkafka reports a rejected login as "no broker answered", so callers ask here for the real reason. An error with
    "Local:" is no answer of a broker: the connection ended.
    """

    refused = ""

    def __init__(self, pass_on: Callable[[KafkaError], None]) -> None:
        self._pass_on = pass_on

    def __call__(self, error: KafkaError) -> None:
        said = error.str()
        if error.name() == "_AUTHENTICATION" and "Local:" not in said:
            self.refused = _OF_THE_CONNECTION.sub("", said)
        self._pass_on(error)


_logins: weakref.WeakKeyDictionary[Any, _Login] = weakref.WeakKeyDictionary()
_OF_THE_CONNECTION = re.compile(r"^\w+://\S+: | \(after \d+ms in state \w+\)$")

_OF_THE_TARGET = frozenset(
    {
        "UNKNOWN_TOPIC_OR_PART",
        "_UNKNOWN_TOPIC",
        "_UNKNOWN_PARTITION",
        "TOPIC_AUTHORIZATION_FAILED",
        "TOPIC_EXCEPTION",
        "POLICY_VIOLATION",
        "INVALID_TIMESTAMP",
        "UNSUPPORTED_FOR_MESSAGE_FORMAT",
    }
)
"""Errors of one target topic. They may pass, so the record may be sent again."""
_OF_THE_RECORD = frozenset({"MSG_SIZE_TOO_LARGE", "INVALID_MSG_SIZE", "INVALID_RECORD"})
"""Errors of one record at its target. They do not pass."""
BY_SIZE = "MSG_SIZE_TOO_LARGE"
"""A broker says this of a whole batch: only a record that was sent alone is known to be too large."""
_NOT_ALLOWED = frozenset(
    {
        "TOPIC_AUTHORIZATION_FAILED",
        "GROUP_AUTHORIZATION_FAILED",
        "CLUSTER_AUTHORIZATION_FAILED",
        "TRANSACTIONAL_ID_AUTHORIZATION_FAILED",
        "SASL_AUTHENTICATION_FAILED",
        "_AUTHENTICATION",
    }
)
_NO_BROKER = frozenset(
    {"_TRANSPORT", "_ALL_BROKERS_DOWN", "_TIMED_OUT", "_RESOLVE", "_TIMED_OUT_QUEUE", "_MSG_TIMED_OUT"}
)
_MISSING = frozenset({"UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC", "_UNKNOWN_PARTITION"})
_TOO_OLD = frozenset({"UNSUPPORTED_VERSION", "_UNSUPPORTED_FEATURE"})
FENCED = frozenset({"_FENCED", "PRODUCER_FENCED", "INVALID_PRODUCER_EPOCH"})


def refusal_of(error: KafkaError) -> Refusal | None:
    """Return the refusal of one record; None if neither it nor its target is the reason."""
    name = error.name()
    if name in _OF_THE_TARGET or name in _OF_THE_RECORD:
        return Refusal(error.str(), is_lasting=name in _OF_THE_RECORD, is_missing=name in _MISSING)
    return None


def cluster_error(error: KafkaError, what: str) -> ClusterError:
    """Return the error of the tree for an error of the client. `what` was not possible."""
    name = error.name()
    said = f"{what}: {error.str()}"
    if name in _NOT_ALLOWED:
        return NotAllowed(said, hint="check the user, its password, and its access rights")
    if name in _MISSING:
        return MissingTopic(said, hint="`filewheel kafka init` makes the topics")
    if name in _NO_BROKER:
        return NoBroker(said, hint="check the address and whether the broker runs, then call again")
    if name in _TOO_OLD:
        return ClusterError(said, hint="the brokers are too old: the service needs Kafka 3.9 or later")
    return ClusterError(said, hint="look at the broker's log, then call again")


def error_of(exc: BaseException) -> KafkaError:
    """Return what a KafkaException carries, also one that the client raised during a callback (a SystemError)."""
    if isinstance(exc, SystemError):
        if not isinstance(exc.__cause__, client().KafkaException):
            raise exc
        exc = exc.__cause__
    error: KafkaError = exc.args[0]
    return error


def end_of(future: Any) -> Event:
    """Return an event that is set when a future ends. Wait for this one: Ctrl-C in a future's own wait loses a lock."""
    ended = Event()
    future.add_done_callback(lambda _: ended.set())
    return ended


def listed(handle: Any, topic: str, address: str, timeout_s: float) -> Mapping[str, Any]:
    """Return all topics of a cluster. A broker may not know one yet that was made a moment ago: it is asked again.

    Of one topic alone, a broker might make it. Raises NoBroker, NotAllowed, ClusterError.
    """
    for wait_s in (*NEW_TOPIC_S, 0.0):
        found = _listed_within(handle, address, timeout_s)
        if topic in found:
            break
        pause(wait_s)
    return found


def _listed_within(handle: Any, address: str, timeout_s: float) -> Mapping[str, Any]:
    found: Mapping[str, Any] = metadata_of(handle, address, timeout_s).topics
    return found


def metadata_of(handle: Any, address: str, timeout_s: float) -> Any:
    """Return the brokers and all topics. Raises NoBroker, NotAllowed, ClusterError.

    It asks in growing slices: inside of a call of the client no Ctrl-C is noticed. A user that the brokers refuse is
    known after the first.
    """
    end_us = SYSTEM_CLOCK.steady_us() + round(timeout_s * US_PER_S)
    slice_s = SLICE_S
    while True:
        left_s = (end_us - SYSTEM_CLOCK.steady_us()) / US_PER_S
        try:
            return handle.list_topics(timeout=max(min(slice_s, left_s), 0.1))
        except client().KafkaException as exc:
            error = error_of(exc)
            if error.name() in _NO_BROKER:
                _raise_if_refused(handle, address)
            if error.name() not in _NO_BROKER or left_s <= slice_s:
                raise cluster_error(error, address) from exc
        pause(0.05)
        slice_s *= 2


def _raise_if_refused(handle: Any, address: str) -> None:
    login = _logins.get(handle)
    if login is None:
        return
    handle.poll(0)  # the client says it in this call, or said it in another thread
    refused, login.refused = login.refused, ""
    if refused:  # mutant: kafka-refused-user-unseen
        raise NotAllowed(f"{address}: {refused}", hint=_WRONG_USER)


_WRONG_USER = "check sasl.mechanism, sasl.username and sasl.password (-X, or the file of settings), then call again"
