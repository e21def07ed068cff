"""The administrator's client of a transport: made at the first question, and kept as long as it is of use.

A client that lived only for one question crashed a process now and then, and a question that librdkafka never answers
held a node up for ever. A client that fails may fail for good: after a restart of a leader one kept its old epoch, and
no partition of it was served. So another takes its place, unless it says only that no broker answers, or that this
user may not ask.
Invariant: no question waits longer than LIMIT_S; one client is asked at a time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

from filewheel.bridges.extra import need
from filewheel.errors import ClusterError, NoBroker, NotAllowed
from filewheel.kafka.client.trouble import client, client_log, cluster_error, error_of, heard, made, metadata_of

ANSWER_S = 10.0
"""How long the brokers may take."""
LIMIT_S = 25.0
"""How long the client may take. It should be done after ANSWER_S; after a leader was killed, some questions never are,
and the partition waits for as long."""


class Admin:
    """Questions to the cluster. Thread-safe."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        """Raises BadArgument when confluent-kafka is not installed."""
        self.words: Any = need("confluent_kafka.admin", "kafka")
        self._client = client()
        self._config = {**config, "error_cb": heard}
        self._lock = threading.Lock()
        self._made: Any = None
        self._stuck: list[Any] = []
        """Clients that owe an answer: the end of one waits for it."""

    def topics(self, what: str, timeout_s: float = ANSWER_S) -> Any:
        """Return the brokers and all topics. Raises ClusterError."""
        return metadata_of(self._admin(), what, timeout_s)

    def ask(self, what: str, ask: Callable[[Any], Mapping[Any, Any]]) -> Mapping[Any, Any]:
        """Begin a question; return its answers to come, for `answer`. Raises ClusterError."""
        try:
            return ask(self._admin())
        except self._client.KafkaException as exc:
            raise self._failed(cluster_error(error_of(exc), what)) from exc

    def answer(self, what: str, future: Any) -> Any:
        """Return an answer. Raises ClusterError."""
        try:
            return future.result(LIMIT_S)
        except TimeoutError:
            with self._lock:
                self._stuck.append(self._made)
                self._made = None
            raise NoBroker(f"{what}: no answer after {LIMIT_S:g} s", hint="check whether the brokers run") from None
        except self._client.KafkaException as exc:
            raise self._failed(cluster_error(error_of(exc), what)) from exc

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
