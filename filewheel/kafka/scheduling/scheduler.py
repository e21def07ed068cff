"""The scheduler whose calls any number of machines run: handlers by name, a delay topic, and a topic of calls.

It is declared as the embedded Scheduler is. Defining one opens nothing; the first enqueue opens a producer, and `run`
joins the group of workers.
Invariant: when an enqueue returns, all in-sync replicas have the call; what is not kept of the embedded scheduler's
promises is refused.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn, Unpack, overload

from filewheel.checks import check_choice, check_flag, check_number, check_whole, shown
from filewheel.env import SYSTEM_CLOCK, Clock
from filewheel.errors import BadArgument
from filewheel.format.limits import check_key
from filewheel.format.settings import PAYLOAD_BYTES_LIMIT
from filewheel.kafka.client.call_transport import ConfluentCalls
from filewheel.kafka.node.health import NodeHealth
from filewheel.kafka.scheduling.call import SERVICE_PREFIXES, CallTopics, cancel_of, record_of
from filewheel.kafka.scheduling.engine import KafkaEngine
from filewheel.kafka.scheduling.occurrences import KafkaOccurrences
from filewheel.kafka.scheduling.refused import Refused, check_options, refused
from filewheel.kafka.scheduling.transport import CallTransport
from filewheel.kafka.topics import TopicReport, make_call_topics
from filewheel.message import MessageId
from filewheel.metrics.metrics import Metrics
from filewheel.schedules.definition import When, check_name, schedule_key
from filewheel.scheduling import bulk
from filewheel.scheduling.call import new_call, transaction_of
from filewheel.scheduling.definitions import Definitions, HandlerOptions, ScheduleOptions, shows
from filewheel.scheduling.engine import Limits
from filewheel.scheduling.events import Callback, Events, Telemetry
from filewheel.scheduling.handler import Handler, P, R
from filewheel.scheduling.job import Job
from filewheel.scheduling.life import STOP_S, Firing
from filewheel.scheduling.options import At, CallOptions, Delay


class KafkaScheduler(Firing[KafkaEngine], Refused):
    """Calls handlers on any number of machines, through a delay service on Kafka. Thread-safe.

    `topic` is the delay topic of a running service (`filewheel kafka run`), `calls` the topic that workers read; dead
    letters go to `<calls>.dead`. `keyed` says that the service runs with --keyed: keys and recurring work need it.
    `exactly_once` makes the outcome of a call and its end one transaction; it needs a `name`, another one for each
    worker, that stays the same over restarts. `group` is the group of the workers, by default `<calls>.workers`.
    `config` has settings of librdkafka for all clients. `threads`, `processes`, `in_flight` and `unknown` are
    Scheduler's, for each worker. `session_s` is the session time-out of the group: a dead worker's calls run again
    after it.

    Raises BadArgument.
    """

    def __init__(
        self,
        bootstrap: str,
        *,
        topic: str,
        calls: str,
        keyed: bool = False,
        exactly_once: bool = False,
        name: str | None = None,
        group: str | None = None,
        config: Mapping[str, Any] | None = None,
        threads: int = 4,
        processes: int | None = None,
        in_flight: int = 1000,
        unknown: str = "wait",
        session_s: float = 10.0,
        metrics: Metrics | None = None,
        clock: Clock = SYSTEM_CLOCK,
        transport: CallTransport | None = None,
    ) -> None:
        if not isinstance(metrics, Metrics | None):
            raise BadArgument(f"metrics are a Metrics, not {shown(metrics)}")
        if not isinstance(bootstrap, str) or not bootstrap:
            raise BadArgument(f"bootstrap is host:port of one broker or more, not {shown(bootstrap)}")
        if config is not None and not isinstance(config, Mapping):
            raise BadArgument(f"config maps settings of librdkafka to values, not {shown(config)}")
        for option, text in (("name", name), ("group", group)):
            if text is not None and (not isinstance(text, str) or not text):
                raise BadArgument(f"{option} is a name, not {shown(text)}")
        processes = len(os.sched_getaffinity(0)) if processes is None else processes
        for option, count in (("threads", threads), ("processes", processes), ("in_flight", in_flight)):
            check_whole(option, count)
        check_choice("unknown", unknown, ("wait", "bury"))
        check_flag("exactly_once", exactly_once)
        if exactly_once and not name:
            raise BadArgument(
                "exactly_once needs the worker's name, which its transactions are fenced by",
                hint="name=...: another one for each worker, the same after a restart",
            )
        path = f"kafka:{bootstrap}/{topic}/{calls}"
        super().__init__(path, Metrics() if metrics is None else metrics)
        self.topics = CallTopics(topic, calls)
        """The delay topic, the topic of calls, and that of dead letters."""
        self.keyed = check_flag("keyed", keyed)
        """Whether the delay topic is keyed."""
        self._ended: set[str] = set()
        """Schedules that an earlier version of this program declared."""
        self._config = {"bootstrap.servers": bootstrap, **(config or {})}
        self._exactly_once = exactly_once
        self._group = group or f"{calls}.workers"
        self._name = name or ""
        self._session_s = check_number("session_s", session_s)
        self._limits = Limits(threads, processes, in_flight, None, unknown, "fire")
        self._clock = clock
        self._events = Events(clock)
        self._telemetry = Telemetry(self.metrics, self._events)
        self._lock = threading.RLock()
        self._given = transport
        self._transport: tuple[CallTransport, int] | None = None
        """The clients, and the process that opened them."""

    def __repr__(self) -> str:
        return f"<KafkaScheduler {self._path}>"

    # -- definitions -------------------------------------------------------------------------------------------

    @overload
    def on(
        self, name: str | None = None, *, batch: None = None, **options: Unpack[HandlerOptions]
    ) -> Callable[[Callable[P, R]], Handler[P, R]]: ...
    @overload
    def on(
        self, name: str | None = None, *, batch: int, **options: Unpack[HandlerOptions]
    ) -> Callable[[Callable[[list[Job]], R]], Handler[..., R]]: ...
    @shows(Definitions.on)
    def on(self, name: str | None = None, **options: Any) -> Any:
        """Register a function as the handler of a name (see Scheduler.on).

        Raises BadArgument for concurrency, rate_per_s, coalesce, pool, priority, catch_up_per_s and result_for, which
        are not kept on Kafka.
        """
        for option in ("concurrency", "rate_per_s", "coalesce", "pool", "priority", "catch_up_per_s", "result_for"):
            if options.get(option) not in (None, False, 0):  # mutant: kafka-limits-accepted
                raise refused(option)
        return super().on(name, **options)

    @shows(Definitions.every)
    def every(self, when: When, **options: Unpack[ScheduleOptions]) -> Callable[[Callable[P, R]], Handler[P, R]]:
        """Call a function repeatedly (see Scheduler.every), on one of the workers each time. Needs a keyed topic.

        Raises BadArgument for jitter_s and count, which are not kept on Kafka.
        """
        if not self.keyed:
            raise refused("every")
        for option in ("jitter_s", "count"):
            if options.get(option):
                raise refused(option)
        return super().every(when, **options)

    # -- enqueue -----------------------------------------------------------------------------------------------

    def send(
        self, name: str, args: Sequence[Any], kwargs: Mapping[str, Any], options: CallOptions,
        *, delay: Delay | None = None, at: At | None = None,
    ) -> MessageId:  # fmt: skip
        """Enqueue a call, within the caller's open transaction if there is one.

        Raises BadArgument; ClusterError when the brokers did not confirm it: it may have been enqueued.
        """
        check_options(options, keyed=self.keyed)
        call = new_call(name, args, kwargs, options, None, self._positional(name))
        for header in call.headers:
            if header.startswith(SERVICE_PREFIXES):
                raise BadArgument(f"the header {header!r} is the delay service's", hint="choose another name")
        now_us = self._clock.now_us()
        [message] = bulk.alone(call, delay, at).messages(now_us, {}, PAYLOAD_BYTES_LIMIT)
        transaction = transaction_of(self._path)
        if transaction is not None:
            if not self._exactly_once:  # mutant: kafka-transaction-at-least-once
                raise refused("transaction")
            transaction.add([message])
            return message.id
        self._opened().send(record_of(message, self.topics, now_us))
        self._telemetry.enqueued(name, message.id)
        return message.id

    def send_many(self, name: str, rows: Sequence[bulk.Row], options: CallOptions, columns: bulk.Columns) -> NoReturn:
        """Refuse: many records are not one write."""
        raise refused("map")

    def cancel(self, id_: object = None, *, key: str | None = None) -> None:
        """Cancel the waiting call with a key, if there is one. A call that is due by now runs.

        Returns when the brokers have the cancellation; a node of the delay service applies it a moment later.
        """
        if id_ is not None or key is None:
            raise refused("cancel")
        if not self.keyed:
            raise refused("key")
        self._opened().send(cancel_of(check_key(key), self.topics))

    def unschedule(self, name: str) -> None:
        """End a schedule that no version of this program declares any more; call it in each worker, before `run`.

        What waits is cancelled, now and whenever this worker is given partitions; what is on its way to it is not
        called. Raises BadArgument for a schedule that this program declares; ClusterError as `cancel`.
        """
        if check_name(name) in self._schedules:
            raise BadArgument(f"this program declares the schedule {name!r}", hint="take out its @scheduler.every")
        self._ended.add(name)
        self.cancel(key=schedule_key(name))

    # -- firing ------------------------------------------------------------------------------------------------

    def make_topics(
        self, *, partitions: int = 12, replication: int = -1, retention_s: float | None = None
    ) -> list[TopicReport]:
        """Make the topics of calls and of dead letters, or report on those that exist (see kafka.make_topics).

        `retention_s` is how long a call is kept that no worker reads; None is for ever.
        """
        return make_call_topics(
            self._config,
            self.topics.calls,
            self.topics.dead,
            partitions=partitions,
            replication=replication,
            retention_s=retention_s,
        )

    def start(self) -> None:
        """Run calls in the background.

        Raises BadArgument when it was started already, NoBroker, MissingTopic, NotAllowed.
        """
        self._start(self._new_engine)

    def _new_engine(self) -> KafkaEngine:
        transport = self._opened()
        transport.check()
        return KafkaEngine(
            self._path,
            transport,
            self.topics,
            transport.ids(),
            self._handlers,
            KafkaOccurrences(self._schedules, self._ended, self._clock),
            self._limits,
            self._telemetry,
            self._clock,
        )

    def _close(self) -> None:
        with self._lock:
            transport, self._transport = self._transport, None
        if transport is not None and transport[1] == os.getpid():
            transport[0].close()

    def run(self, *, stop_s: float = STOP_S) -> None:
        """Run calls until SIGINT or SIGTERM, give running ones `stop_s` to end, and return.

        A second signal ends that wait. In a thread other than the main one it runs until `stop` is called.

        Raises WrongSource when the topic of calls was deleted and made anew; what `start` raises.
        """
        self._run(stop_s, self._new_engine)

    def health(self) -> NodeHealth:
        """Return what is wrong with this worker now; nothing while it does not run calls. From any thread."""
        engine = self._engine
        return NodeHealth([]) if engine is None else engine.health()

    def on_event(self, callback: Callback, kinds: Sequence[str] | None = None) -> Callable[[], None]:
        """Call a function with each event (of these kinds); return a function that unsubscribes it."""
        return self._events.subscribe(callback, kinds)

    def _opened(self) -> CallTransport:
        """Return the clients of this process; a forked child has its own."""
        with self._lock:
            if self._transport is None or self._transport[1] != os.getpid():
                made: CallTransport = self._given or ConfluentCalls(
                    self._config,
                    self.topics.delay,
                    self.topics.calls,
                    self.topics.dead,
                    group=self._group,
                    worker=self._name if self._exactly_once else None,
                    session_s=self._session_s,
                )
                self._transport = made, os.getpid()
            return self._transport[0]
