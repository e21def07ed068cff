"""What the records of one delay topic mean: the options that every node of a group needs alike.

A due is a function of the record and of these options, so two nodes with other options give a record two ids, and fire
it twice. How one node runs is no matter of this file.
Invariant: a Policy is checked when it is made, and never changes.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass, replace
from typing import Literal

from filewheel.checks import check_choice, check_flag, check_number, check_whole, shown
from filewheel.errors import BadArgument

TOPIC_CHARS_MAX = 249
_TOPIC = re.compile(rf"[a-zA-Z0-9._-]{{1,{TOPIC_CHARS_MAX}}}")

OnHorizon = Literal["dead-letter", "roll"]
OnTargetError = Literal["retry", "dead-letter", "put-back"]
OnMissingTarget = Literal["", "retry", "dead-letter", "put-back"]


INTERNAL_TOPICS = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state", "__cluster_metadata"})
"""Topics of the brokers themselves. They refuse a client's record for good, with errors that read as if it might help
to try again."""


def is_topic(name: str) -> bool:
    """Return whether Kafka allows this name for a topic."""
    return _TOPIC.fullmatch(name) is not None and name not in (".", "..")


@dataclass(frozen=True, slots=True)
class Policy:
    """The options of a delay topic. Raises BadArgument when one is wrong, or two contradict each other."""

    topic: str
    """The delay topic."""
    dead_letter_topic: str = ""
    """Where records go that cannot be delivered. Default: the delay topic's name and `.dlt`."""
    default_target: str = ""
    """The target of a record that names none. Empty: such a record is a dead letter."""
    horizon_s: float | None = None
    """The longest wait, from the record's timestamp. The delay topic must keep its records longer than this."""
    on_horizon: OnHorizon = "dead-letter"
    """What happens to a longer wait: a dead letter, or it waits as long as allowed and goes back to the delay topic."""
    on_target_error: OnTargetError = "retry"
    """What happens when a target refuses a record: again until it succeeds (its partition waits), a dead letter, or
    back to the delay topic."""
    on_missing_target: OnMissingTarget = ""
    """The same for a target topic that does not exist, where `on_target_error` is "retry": one mistyped name would hold
    up its whole partition. Default: "put-back"; "dead-letter" for a keyed topic."""
    put_back_s: float = 10.0
    """How long a record waits in the delay topic after it was put back."""
    attempts_max: int = 10
    """A record that was put back this often becomes a dead letter."""
    keyed: bool = False
    """A record replaces the waiting one with the same key, and one without a value cancels it."""
    keep_routing: bool = False
    """Produced records keep the headers that asked for the delay."""

    def __post_init__(self) -> None:
        if not self.dead_letter_topic:
            object.__setattr__(self, "dead_letter_topic", f"{self.topic}.dlt")
        if not self.on_missing_target:
            object.__setattr__(self, "on_missing_target", "dead-letter" if self.keyed else "put-back")
        names = ("topic", "dead_letter_topic", "default_target")
        for name in names:
            topic = getattr(self, name)
            if not isinstance(topic, str) or (not is_topic(topic) and (topic or name != "default_target")):
                raise BadArgument(
                    f"{name} is the name of a topic, not {shown(topic)}",
                    hint=f"1 to {TOPIC_CHARS_MAX} letters, digits, `.`, `_` and `-`",
                )
        reasons = (self._not_written(self.dead_letter_topic), self.not_a_target(self.default_target))
        for name, reason in zip(names[1:], reasons, strict=True):
            if reason:
                raise BadArgument(f"{name} is {getattr(self, name)!r}, {reason}")
        if self.horizon_s is not None:
            check_number("horizon_s", self.horizon_s)
        check_choice("on_horizon", self.on_horizon, ("dead-letter", "roll"))
        check_choice("on_target_error", self.on_target_error, ("retry", "dead-letter", "put-back"))
        check_choice("on_missing_target", self.on_missing_target, ("retry", "dead-letter", "put-back"))
        check_number("put_back_s", self.put_back_s)
        check_whole("attempts_max", self.attempts_max)
        check_flag("keyed", self.keyed)
        check_flag("keep_routing", self.keep_routing)
        # A record that goes back to the delay topic is a new one there. A cancellation that is read in between would
        # come before it, and have no effect.
        for name in ("on_target_error", "on_missing_target"):
            if self.keyed and getattr(self, name) == "put-back":
                raise BadArgument(f"keyed and {name}='put-back' exclude each other", hint="retry or dead-letter")
        if self.keyed and self.on_horizon == "roll":
            raise BadArgument("keyed and on_horizon='roll' exclude each other", hint="dead-letter")

    def not_a_target(self, topic: str) -> str:
        """Return why nothing may be sent to a topic; empty if it may be a target."""
        if topic == self.dead_letter_topic:  # mutant: kafka-dead-letter-target
            return "where the service puts what it cannot deliver"
        return self._not_written(topic)

    def _not_written(self, topic: str) -> str:
        if topic in (self.topic, self.marker_topic):
            return "which the service itself reads"
        if topic in INTERNAL_TOPICS:  # mutant: kafka-internal-target
            return "which is the brokers' own"
        return ""

    @property
    def for_missing_target(self) -> Policy:
        """Return the policy for a record whose target does not exist."""
        if self.on_target_error != "retry" or self.on_missing_target == "":
            return self
        return replace(self, on_target_error=self.on_missing_target)

    @property
    def digest(self) -> str:
        """Return what tells the options from others that give a record another due, target or fate."""
        fields = [self.horizon_ms, self.on_horizon, self.default_target, self.keyed]
        return hashlib.sha256(json.dumps(fields).encode()).hexdigest()[:12]

    def delivery(self, *, exactly_once: bool) -> str:
        """Return in words what else the nodes of a group need alike: the digest does not tell these apart."""
        once = "exactly once" if exactly_once else "at least once"
        return f"{once}, --on-target-error {self.on_target_error}, --on-missing-target {self.on_missing_target}"

    @property
    def marker_topic(self) -> str:
        """The compacted topic of markers."""
        return f"{self.topic}.cursor"

    @property
    def horizon_ms(self) -> int | None:
        """The horizon in milliseconds; None if there is none."""
        return None if self.horizon_s is None else int(self.horizon_s * 1000)
