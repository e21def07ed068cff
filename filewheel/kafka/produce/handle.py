"""The sender of a producer: opened on first use, closed once, and never used in a forked child.

librdkafka's threads do not survive a fork. So a producer that was made before it is opened in the child on first use,
and one that was opened before raises Forked there.
Invariant: at most one sender is open for a handle; after `close` there is none, and each use raises Closed.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping

from filewheel.checks import check_number, shown
from filewheel.env import Clock
from filewheel.errors import BadArgument, Closed, Forked
from filewheel.kafka.client.sender import TopicSender

TIMEOUT_MAX_S = 86_400.0


class SenderHandle:
    """The one sender of a producer. Thread-safe."""

    def __init__(
        self,
        bootstrap: str,
        topic: str,
        properties: Mapping[str, str | int | float | bool] | None,
        *,
        timeout_s: float,
        clock: Clock,
    ) -> None:
        """Check the arguments; nothing is opened. Raises BadArgument."""
        if not isinstance(bootstrap, str) or not bootstrap:
            raise BadArgument(f"bootstrap is the address of a broker, not {shown(bootstrap)}", hint="localhost:9092")
        if properties is not None and not isinstance(properties, Mapping):
            raise BadArgument(
                f"properties is a dict of settings of librdkafka, not {shown(type(properties).__name__)}",
                hint='{"security.protocol": "SASL_SSL"}',
            )
        self.timeout_s = check_number("timeout_s", timeout_s, most=TIMEOUT_MAX_S)
        self.clock = clock
        self._config = {**(properties or {}), "bootstrap.servers": bootstrap}
        self._topic = topic
        self._lock = threading.Lock()
        self._sender: TopicSender | None = None
        self._pid = 0
        self._is_closed = False

    def get(self) -> TopicSender:
        """Return the sender; open it on first use. Raises Closed, Forked, BadArgument."""
        if self._is_closed:
            raise Closed("this producer is closed", hint="make another one")
        self._check_home()
        sender = self._sender
        if sender is None:
            with self._lock:
                if self._is_closed:
                    raise Closed("this producer is closed", hint="make another one")
                if self._sender is None:
                    self._sender = TopicSender(self._config, self._topic, timeout_s=self.timeout_s, clock=self.clock)
                    self._pid = os.getpid()
                sender = self._sender
        return sender

    def opened(self) -> TopicSender | None:
        """Return the sender if it is open; None in a forked child."""
        return None if self._is_closed or self._is_inherited() else self._sender

    def end(self) -> TopicSender | None:
        """Take no more calls; return the sender to close, once. In a forked child there is none."""
        self._is_closed = True
        if self._is_inherited():  # before the lock: a thread of the parent may have held it
            return None
        with self._lock:
            sender, self._sender = self._sender, None
        return sender

    def _is_inherited(self) -> bool:
        return self._pid not in (0, os.getpid())

    def _check_home(self) -> None:
        if self._is_inherited():  # mutant: kafka-producer-forked
            raise Forked("this producer was opened by the parent process", hint="make it, or open it, after the fork")
