"""The administrator's client of a transport: made at the first question, and kept as long as it is of use.

A client that lived only for one question crashed a process now and then, and a question that librdkafka never answers
held a node up for ever; a client that owes an answer is left alone until the process ends. A client that fails may fail
for good, so another takes its place, unless it says only that no broker answers, or that this user may not ask.
No question here goes to the leader of a partition: reader.py says why.
Invariant: no question waits longer than LIMIT_S, and none after `interrupt`; one client is asked at a time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from filewheel.bridges.extra import need
from filewheel.env import SYSTEM_CLOCK, Clock, Event
from filewheel.errors import ClusterError, NoBroker, NotAllowed
from filewheel.kafka.client.kept import never_free
from filewheel.kafka.client.trouble import (
    client,
    client_log,
    cluster_error,
    end_of,
    error_of,
    heard,
    made,
    metadata_of,
)
from filewheel.message import US_PER_S

ANSWER_S = 10.0
"""How long the brokers may take."""
LIMIT_S = 25.0
"""How long the client may take. It should be done after ANSWER_S; after a leader was killed, some questions never are,
and the partition waits for as long."""
SLICE_S = 0.2
"""How soon a question that waits sees an interruption."""


class Admin:
    """Questions to the cluster. Thread-safe."""

    def __init__(self, config: Mapping[str, Any], clock: Clock = SYSTEM_CLOCK) -> None:
        """Raises BadArgument when confluent-kafka is not installed."""
        self.words: Any = need("confluent_kafka.admin", "kafka")
        self._client = client()
        self._config = {**config, "error_cb": heard}
        self._clock = clock
        self._lock = threading.Lock()
        self._made: Any = None
        self._is_interrupted = Event()

    def interrupt(self) -> None:
        """Let all questions end with NoBroker within SLICE_S: the service stops. From any thread."""
        self._is_interrupted.set()

    def topics(self, what: str, timeout_s: float = ANSWER_S) -> Any:
        """Return the brokers and all topics. Raises ClusterError."""
        return metadata_of(self._admin(), what, timeout_s)

    def topic_ids(self, names: Sequence[str]) -> dict[str, str]:
        """Return the cluster's id of each topic: another one when it is deleted and made again. Raises ClusterError."""
        asked = self.ask(
            ", ".join(names),
            lambda admin: admin.describe_topics(self._client.TopicCollection(list(names)), request_timeout=ANSWER_S),
        )
        return {name: str(self.answer(name, asked[name]).topic_id) for name in names}

    def ask(self, what: str, ask: Callable[[Any], Mapping[Any, Any]]) -> Mapping[Any, Any]:
        """Begin a question; return its answers to come, for `answer`. Raises ClusterError."""
        try:
            return ask(self._admin())
        except self._client.KafkaException as exc:
            raise self._failed(cluster_error(error_of(exc), what)) from exc

    def answer(self, what: str, future: Any) -> Any:
        """Return an answer. Raises ClusterError."""
        end_us = self._clock.steady_us() + round(LIMIT_S * US_PER_S)
        ended = end_of(future)
        while not ended.wait(SLICE_S):
            if self._is_interrupted.is_set() or self._clock.steady_us() >= end_us:
                raise self._unanswered(what)
        try:
            return future.result()
        except self._client.KafkaException as exc:
            raise self._failed(cluster_error(error_of(exc), what)) from exc

    def _unanswered(self, what: str) -> NoBroker:
        """Leave the client alone for good: its end would wait for the answer."""
        with self._lock:
            if self._made is not None:
                never_free(self._made)
            self._made = None
        why = "the service stops" if self._is_interrupted.is_set() else f"no answer after {LIMIT_S:g} s"
        return NoBroker(f"{what}: {why}", hint="check whether the brokers run")

    def _failed(self, error: ClusterError) -> ClusterError:
        """Let the next question make another client, if that may help."""
        if not isinstance(error, (NoBroker, NotAllowed)):
            with self._lock:
                self._made = None  # mutant: kafka-failed-admin-kept
        return error

    def _admin(self) -> Any:
        with self._lock:
            if self._made is None:
                self._made = made(self.words.AdminClient, self._config, logger=client_log)
            return self._made
