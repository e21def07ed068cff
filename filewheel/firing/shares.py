"""Shares: the groups of topics whose claims are bounded, or put first, together.

A key of `at_most`, and of `first`, is a topic or a glob. A topic belongs to the share of its own name if that is a key,
or else of the first glob that it fits, or else to a share of its own. Messages that a claim passed over wait by share,
so a claim with other globs sorts them anew.
Invariant: every topic belongs to exactly one share, the same one for all claims with the same globs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from typing import Any

from filewheel.format.limits import matches
from filewheel.format.record import topic_of

_TOPICS_MAX = 10_000
"""The most topics whose share is remembered."""


class Layout:
    """Assigns topics to shares."""

    def __init__(self, keys: Iterable[bytes] = ()) -> None:
        """`keys` are topics and globs, in the order in which they count."""
        known = list(dict.fromkeys(keys))
        self.globs = tuple(key for key in known if any(c in key for c in b"*?["))
        self.topics = frozenset(known).difference(self.globs) if self.globs else frozenset()
        """The keys that are topics: they matter only where a glob could take them."""
        self._of: dict[bytes, bytes] = {}
        self.share_of: Callable[[bytes], bytes] = self._share_of if self.globs else topic_of
        """Returns the share of a packed put."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Layout) and (self.globs, self.topics) == (other.globs, other.topics)

    __hash__ = None  # type: ignore[assignment]

    def of(self, topic: bytes) -> bytes:
        """Return the share of a topic, or of a key."""
        share = self._of.get(topic)
        if share is None:
            if len(self._of) >= _TOPICS_MAX:
                self._of.clear()
            share = self._of[topic] = self._find(topic)
        return share

    def _share_of(self, put: bytes) -> bytes:
        return self.of(topic_of(put))

    def _find(self, topic: bytes) -> bytes:
        if topic in self.topics:  # mutant: glob-before-topic
            return topic
        text = _text(topic)
        return next((glob for glob in self.globs if matches(text, _text(glob))), topic)


class Bounds:
    """What one claim may take: at most so many of each share, and which shares go first."""

    def __init__(self, at_most: Mapping[bytes, int], first: Sequence[bytes] = ()) -> None:
        self.at_most = at_most
        self.first = first

    @property
    def keys(self) -> list[bytes]:
        """The keys that lay out the shares. With `first`, all topics that no key names have one share together."""
        return [*self.at_most, *self.first, *([b"*"] if self.first else [])]

    def levels(self) -> Iterator[MutableMapping[bytes, int]]:
        """Yield the room of each share that has a bound, for each level, the one that goes first at first."""
        if not self.first:
            yield dict(self.at_most)
            return
        for level in range(len(self.first) + 1):
            yield _Level(self, level)

    def level_of(self, share: bytes) -> int:
        """Return the level at which a share is taken."""
        text = _text(share)
        return next((n for n, key in enumerate(self.first) if matches(text, _text(key))), len(self.first))


NO_BOUNDS = Bounds({})


class _Level(dict[bytes, int]):
    """The rooms at one level: the shares of other levels have none."""

    def __init__(self, bounds: Bounds, level: int) -> None:
        super().__init__(bounds.at_most)
        self._bounds = bounds
        self._level = level
        self._is_here: dict[bytes, bool] = {}

    def __bool__(self) -> bool:
        return True

    def get(self, share: bytes, default: Any = None, /) -> Any:
        """Return the room of a share, 0 at another level; the default if it has no bound."""
        here = self._is_here.get(share)
        if here is None:
            here = self._is_here[share] = self._bounds.level_of(share) == self._level  # mutant: lower-level-first
        return super().get(share, default) if here else 0


def _text(key: bytes) -> str:
    return key.decode("utf-8", "surrogateescape")
