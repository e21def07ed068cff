"""The pauses of a wheel: the whole wheel, topics by name or glob, and schedules by name (docs/format.md, 13).

paused.json holds them as sealed JSON. Each change raises `version`, and each promotion the epoch of later changes, so
the newer of two copies in a set is known. Opens no file.
Invariant: pauses that were read are pauses that were written; at most one has a given kind and name.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Literal, get_args

from filewheel.checks import shown
from filewheel.errors import BadArgument, Damaged, TooLarge
from filewheel.format.limits import check_topic, matches
from filewheel.format.record import topic_of, unpack_put
from filewheel.format.sealed import Unsealed, seal, unseal
from filewheel.message import SCHEDULE, Message

What = Literal["wheel", "topic", "schedule"]

PAUSES_MAX = 256
"""How many topics and schedules are paused at most; the whole wheel can be paused beside them."""
WHY_MAX = 500
"""How many characters a reason has at most."""
SCHEDULE_BYTES_MAX = 200
PAUSED_BYTES_MAX = 4 << 20
"""How much of paused.json is read."""
_INT_END = 1 << 63
_TOPICS_MAX = 4096
_KEYS = {"what", "name", "since_us", "why"}
_SCHEDULE_BYTES = SCHEDULE.encode()
_HINT = "`filewheel repair` puts it aside and pauses the whole wheel; pause again what should be, then resume that"


@dataclass(frozen=True, slots=True)
class Pause:
    """One pause: messages that it holds do not begin until it is resumed."""

    what: What = "wheel"
    """What it holds: all messages, those of a topic, or the occurrences of a schedule."""
    name: str = ""
    """The topic or glob, or the schedule's name; empty for the wheel."""
    since_us: int = 0
    """When it was paused, in microseconds since the epoch."""
    why: str = ""
    """The reason that was given."""

    def __str__(self) -> str:
        if self.what == "wheel":
            return "the wheel"
        return f"{self.what} {self.name}" if self.name else "messages without a topic"

    def is_for(self, other: Pause) -> bool:
        """Return whether both have the same kind and name."""
        return (self.what, self.name) == (other.what, other.name)

    def holds(self, topic: str, schedule: str | None) -> bool:
        """Return whether it holds a message of this topic, and of this schedule if it is an occurrence."""
        if self.what == "topic":
            return matches(topic, self.name)
        return self.what == "wheel" or schedule == self.name


@dataclass(frozen=True, slots=True)
class Pauses:
    """What is paused in a wheel: a collection of Pause, in the order in which they were made."""

    entries: tuple[Pause, ...] = ()
    epoch: int = 0
    """The epoch of the set in which the last change was made; 0 outside of sets."""
    version: int = 0
    """Rises with each change."""
    drains: int = 0
    """How often the wheel was drained: a process that has seen a lower number ends, while the wheel is paused."""

    def __len__(self) -> int:
        return len(self.entries)

    def __iter__(self) -> Iterator[Pause]:
        return iter(self.entries)

    def __str__(self) -> str:
        return ", ".join(map(str, self.entries)) or "nothing"

    @property
    def wheel(self) -> Pause | None:
        """The pause of the whole wheel."""
        return next((p for p in self.entries if p.what == "wheel"), None)

    @property
    def order(self) -> tuple[int, int]:
        """What tells the newer of two copies: it is larger."""
        return self.epoch, self.version

    def has_drained(self, drains: int) -> bool:
        """Return whether the wheel was drained since a process has seen this number of drains, and is still paused."""
        return self.drains > drains and self.wheel is not None

    def holding(self, topic: str, schedule: str | None = None) -> tuple[Pause, ...]:
        """Return the pauses that hold messages of a topic, or the occurrences of a schedule that have it."""
        return tuple(p for p in self.entries if p.holds(topic, schedule))

    def of(self, message: Message) -> tuple[Pause, ...]:
        """Return the pauses that hold a message."""
        return self.holding(message.topic, schedule_name(message.headers)) if self.entries else ()

    def find(self, pause: Pause) -> Pause | None:
        """Return the pause with the kind and name of this one."""
        return next((p for p in self.entries if p.is_for(pause)), None)

    def added(self, pause: Pause) -> Pauses:
        """Return the pauses with this one; one of its kind and name keeps its time, and gets its reason if it has one.

        Raises TooLarge when there would be too many.
        """
        known = self.find(pause)
        if known is not None:
            kept = replace(known, why=pause.why or known.why)
            return replace(self, entries=tuple(kept if p is known else p for p in self.entries))
        if pause.what != "wheel" and sum(p.what != "wheel" for p in self.entries) >= PAUSES_MAX:
            raise TooLarge(
                f"{PAUSES_MAX} topics and schedules are paused, which is the most",
                hint="use a glob, or pause the wheel",
            )
        return replace(self, entries=(*self.entries, pause))

    def to_json(self) -> bytes:
        """Write paused.json, with its checksum as the last line."""
        return seal({"paused": 1, **asdict(self)})


class PausedMessages:
    """The messages that some pauses hold. Thread-safe."""

    def __init__(self, pauses: Pauses) -> None:
        self.pauses = pauses
        self.is_any = bool(pauses.entries)
        """Whether anything is paused."""
        self.is_whole = pauses.wheel is not None
        """Whether the whole wheel is paused."""
        self._has_schedules = any(p.what == "schedule" for p in pauses)
        self._topics: dict[bytes, bool] = {}
        """Whether a topic is paused, of those that were met."""

    def holds(self, put: bytes) -> bool:
        """Return whether a message is paused. Cost: 1 µs; while a schedule is paused, more for an occurrence."""
        if self.is_whole or self.holds_topic(topic_of(put)):
            return True
        return self._has_schedules and _SCHEDULE_BYTES in put and self._holds_occurrence(put)

    def holds_topic(self, topic: bytes) -> bool:
        """Return whether all messages of a topic are paused."""
        found = self._topics.get(topic)
        if found is None:
            if len(self._topics) >= _TOPICS_MAX:
                self._topics.clear()
            text = topic.decode(errors="replace")
            found = self._topics[topic] = any(p.holds(text, None) for p in self.pauses)
        return found

    def _holds_occurrence(self, put: bytes) -> bool:
        try:
            name = schedule_name(unpack_put(put).headers)
        except Damaged:
            return False  # no message: it is claimed, and set aside
        return any(p.what == "schedule" and p.name == name for p in self.pauses)


def schedule_name(headers: Mapping[str, str]) -> str | None:
    """Return the name of the schedule that an occurrence belongs to; None for any other message."""
    definition = headers.get(SCHEDULE)
    if definition is None:
        return None
    try:
        name = json.loads(definition)["name"]
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    return name if isinstance(name, str) else None


def new_pause(topic: str | None, schedule: str | None, why: str = "", since_us: int = 0) -> Pause:
    """Return the pause of a topic, of a schedule, or with neither of the whole wheel. Raises BadArgument, TooLarge."""
    if topic is not None and schedule is not None:
        raise BadArgument("give a topic or a schedule, not both", hint="make two calls")
    check_why(why)
    if topic is not None:
        check_topic(topic)
        return Pause("topic", topic, since_us, why)
    if schedule is not None:
        return Pause("schedule", check_schedule(schedule), since_us, why)
    return Pause("wheel", "", since_us, why)


def check_why(why: object) -> str:
    """Return a reason. Raises BadArgument, TooLarge."""
    if not isinstance(why, str):
        raise BadArgument(f"why is a str, not {shown(why)}")
    if len(why) > WHY_MAX:
        raise TooLarge(f"the reason has {len(why)} characters; the limit is {WHY_MAX}")
    if not _is_text(why):
        raise BadArgument(f"the reason {shown(why)} is not valid Unicode")
    return why


def check_schedule(name: object) -> str:
    """Return the name of a schedule. Raises BadArgument."""
    if not isinstance(name, str) or not _is_text(name) or not 1 <= len(name.encode()) <= SCHEDULE_BYTES_MAX:
        raise BadArgument(f"the name of a schedule is a str of 1 to {SCHEDULE_BYTES_MAX} bytes, not {shown(name)}")
    return name


def _is_text(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def parse_pauses(data: bytes, path: str) -> Pauses:
    """Read paused.json. Raises Damaged when its content is invalid."""
    try:
        fields = unseal(data)
        if fields.pop("paused") != 1:
            raise ValueError("another version")
        rows = fields.pop("entries")
        _that(type(rows) is list and all(set(row) == _KEYS for row in rows), "entries", rows)
        pauses = Pauses(tuple(Pause(**row) for row in rows), **fields)
        _check(pauses)
    except Unsealed as exc:
        raise Damaged("the list of pauses fails its checksum", path=path, hint=_HINT) from exc
    except (ValueError, TypeError, KeyError, AttributeError) as exc:
        raise Damaged(f"not a list of pauses ({exc})", path=path, hint=f"upgrade filewheel; or {_HINT}") from exc
    return pauses


def _check(pauses: Pauses) -> None:
    """Raise ValueError unless this library may have written every value."""
    entries = pauses.entries
    _that(len(entries) <= PAUSES_MAX + 1, "entries", len(entries))
    _that(len({(p.what, p.name) for p in entries}) == len(entries), "entries", "the same twice")
    for name, number in (("epoch", pauses.epoch), ("version", pauses.version), ("drains", pauses.drains)):
        _that(_is_count(number), name, number)
    for pause in entries:
        _that(pause.what in get_args(What), "what", pause.what)
        _that(isinstance(pause.name, str) and (pause.what != "wheel" or not pause.name), "name", pause.name)
        _that(_is_count(pause.since_us), "since_us", pause.since_us)
        new_pause(  # a BadArgument is a ValueError
            pause.name if pause.what == "topic" else None, pause.name if pause.what == "schedule" else None, pause.why
        )


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value < _INT_END


def _that(is_so: bool, key: str, value: object) -> None:
    if not is_so:
        raise ValueError(f"{key} is {str(value)[:100]!r}")
