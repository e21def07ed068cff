"""What a keeper says of the messages that it does not hand out: paused, drained, or passed over for want of room.

The part of a Keeper that answers; pauses.py, head.py and ready.py decide.
Invariant: nothing here changes what is claimed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from filewheel.disk.directory import Directory
from filewheel.errors import Closed
from filewheel.firing.head import Head
from filewheel.firing.pauses import KnownPauses
from filewheel.format.limits import check_topic
from filewheel.format.pauses import Pauses


class Heeding:
    """The part of a Keeper that knows what is paused. The Keeper has the attributes declared here."""

    _pauses: KnownPauses
    _drains: int
    """How often the wheel was drained before this keeper was opened."""
    _dir: Directory
    _head: Head
    _lock: threading.RLock

    def _know_pauses(self) -> Callable[[], int]:
        """Read what is paused; return what reads how often the wheel was drained. Raises Damaged, DiskError.

        Before the keeper waits for its lock: a standby ends with the keeper that is drained.
        """
        self._pauses = KnownPauses(self._dir)
        self._drains = self.paused.drains
        return self._pauses.drains

    @property
    def paused(self) -> Pauses:
        """What is paused, as this keeper knows it since its last claim."""
        return self._pauses.held.pauses

    @property
    def is_drained(self) -> bool:
        """Whether the wheel was drained since this keeper was opened: close it once its claims are settled."""
        return self.paused.has_drained(self._drains)

    def check_drained(self) -> None:
        """Raise Closed when the wheel was drained since this keeper was opened: it hands out nothing more."""
        if self.is_drained:
            raise Closed(
                "the wheel was drained: this keeper hands out nothing more",
                path=self._dir.path,
                hint="close it; the next keeper fires after a `filewheel resume`",
            )

    def has_passed_over(self, topic: str) -> bool:
        """Return whether due messages wait because of a claim's `at_most`; they do not end a `wait`.

        Of a topic, or of those with which it shares a bound.
        """
        check_topic(topic)
        name = topic.encode()
        with self._lock:
            aside = self._head.ready.aside
            return aside.layout.of(name) in aside and not self._pauses.held.holds_topic(name)
