"""What a person does to messages from `top` or the page: first proposed, then done.

A proposal says which of the messages are there and what else would happen, so that a question can name it. Both go
through `Wheel`, which keeps all its rules; a message that has fired or moved in between is reported, not guessed at.
Invariant: a proposal changes nothing, and an act touches only the messages that it is given.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from filewheel.checks import check_choice, check_number
from filewheel.errors import BadArgument, FilewheelError, NotFound
from filewheel.live.message_fields import row_fields
from filewheel.message import Message, MessageId
from filewheel.runs.kills import Killed
from filewheel.schedules.definition import schedule_of
from filewheel.wheel import Wheel

Verb = Literal["cancel", "reschedule", "kill", "revive", "drop"]
"""Cancel and reschedule are for pending messages, kill for one that runs; revive (fire again) and drop (for good) are
for dead letters."""
VERBS: tuple[Verb, ...] = get_args(Verb)
IDS_MAX = 1_000
"""The largest act."""
DELAY_S_MAX = 10 * 365 * 86_400
KILL_S = 5.0
"""How long a kill is waited for."""
_OF_THE_DEAD = ("revive", "drop")
_KILLED = {
    Killed.ENDED: "it had ended by itself",
    Killed.WAITING: "it has not begun: cancel it",
    Killed.OTHER: "another kill came first",
    Killed.THREAD: "it runs in a thread, which nothing can end from outside",
    Killed.PROGRAM: "it runs in a program of its own, which cannot end it",
    Killed.NO_KEEPER: "no keeper runs",
    Killed.TIMED_OUT: "it has not ended yet; it may still",
}


@dataclass(frozen=True)
class Act:
    """A verb, the messages that it is for, and when they fire then. Raises BadArgument for a wrong one."""

    verb: Verb
    ids: tuple[MessageId, ...]
    delay_s: float = 0
    """Of reschedule and revive: from now."""

    def __post_init__(self) -> None:
        check_choice("verb", self.verb, VERBS)
        if not 1 <= len(self.ids) <= IDS_MAX:
            raise BadArgument(f"an act is for 1 to {IDS_MAX:,} messages, not {len(self.ids):,}")
        if self.verb == "kill" and len(self.ids) > 1:
            raise BadArgument(f"one message is killed at a time, not {len(self.ids):,}")
        check_number("delay_s", self.delay_s, least=0, most=DELAY_S_MAX)

    @classmethod
    def of(cls, verb: str, ids: Iterable[str], delay_s: float = 0) -> Act:
        """Make an act of texts. Raises BadArgument."""
        check_choice("verb", verb, VERBS)
        return cls(verb, tuple(dict.fromkeys(MessageId.parse(id_) for id_ in ids)), delay_s)  # type: ignore[arg-type]

    def fits(self, message: Message) -> bool:
        """Return whether the verb is for this message."""
        return message.is_dead == (self.verb in _OF_THE_DEAD)


@dataclass(frozen=True)
class Proposal:
    """What an act would do."""

    act: Act
    found: list[Message]
    missing: list[MessageId]
    """Not pending any more, or not of the kind that the verb is for (`_ABSENT`)."""

    @property
    def ends(self) -> list[str]:
        """The schedules that it would end, because it cancels their next occurrence."""
        if self.act.verb != "cancel":
            return []
        definitions = map(schedule_of, self.found)
        return [definition.name for definition in definitions if definition is not None]

    @property
    def question(self) -> str:
        """What to ask before it is done."""
        number = len(self.found)
        noun = ("dead letter" if self.act.verb in _OF_THE_DEAD else "message") + ("" if number == 1 else "s")
        words = {
            "cancel": f"Cancel {number:,} {noun}?",
            "reschedule": f"Fire {number:,} {noun} {_when(self.act.delay_s)}?",
            "revive": f"Revive {number:,} {noun}, to fire {_when(self.act.delay_s)}?",
            "kill": f"Kill {number:,} {noun} that runs? It is dropped.",
            "drop": f"Delete {number:,} {noun} for good?",
        }
        names = ", ".join(self.ends)
        return words[self.act.verb] + (f" This ends the schedule {names}." if names else "")

    def to_json(self) -> dict[str, Any]:
        """Return all fields."""
        return {
            "verb": self.act.verb,
            "question": self.question,
            "messages": [row_fields(message) for message in self.found],
            "missing": [str(id_) for id_ in self.missing],
            "missing_text": f"{len(self.missing):,} {_ABSENT[self.act.verb]}",
            "ends_schedules": self.ends,
        }


def _when(delay_s: float) -> str:
    return "now" if not delay_s else f"in {delay_s:g} seconds"


def propose(wheel: Wheel, act: Act) -> Proposal:
    """Look what an act would do. Cost: a look-up of each message. Raises FilewheelError."""
    found, missing = [], []
    running = wheel.running() if act.verb == "kill" else None
    for id_ in act.ids:
        message = wheel.get(id_)
        is_begun = running is None or running.pending_state(id_) == "running"
        if message is not None and act.fits(message) and is_begun:
            found.append(message)
        else:
            missing.append(id_)
    return Proposal(act, found, missing)


_ABSENT = {
    "cancel": "not pending any more",
    "reschedule": "not pending any more",
    "kill": "does not run: it waits, so cancel it, or it has ended",
    "revive": "no dead letter any more",
    "drop": "no dead letter any more",
}
"""Why a message is left alone."""
_DONE = {
    "cancel": "cancelled",
    "reschedule": "rescheduled",
    "kill": "killed",
    "revive": "revived",
    "drop": "deleted",
}


@dataclass
class Done:
    """What an act did."""

    verb: Verb
    done: dict[MessageId, str] = field(default_factory=dict)
    """The outcome of each message: of a cancel "stopped", "begun" or "maybe begun"; else its new id."""
    missing: list[MessageId] = field(default_factory=list)
    failed: dict[MessageId, str] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """What to report."""
        word = _DONE[self.verb]
        begun = sum(outcome in ("begun", "maybe begun") for outcome in self.done.values())
        parts = [f"{len(self.done):,} {word}"]
        parts += [f"{begun:,} had begun, or may have"] if begun else []
        parts += [f"{len(self.missing):,} {_ABSENT[self.verb]}"] if self.missing else []
        parts += [f"{len(self.failed):,} failed: {next(iter(self.failed.values()))}"] if self.failed else []
        return ", ".join(parts)

    def to_json(self) -> dict[str, Any]:
        """Return all fields."""
        return {
            "verb": self.verb,
            "text": self.text,
            "done": {str(id_): outcome for id_, outcome in self.done.items()},
            "missing": [str(id_) for id_ in self.missing],
            "failed": {str(id_): why for id_, why in self.failed.items()},
        }


def perform(wheel: Wheel, act: Act) -> Done:
    """Do it. A cancel is one commit; of the other verbs each message is one. Raises FilewheelError."""
    proposal = propose(wheel, act)
    done = Done(act.verb, missing=list(proposal.missing))
    ids = [message.id for message in proposal.found]
    if act.verb in ("cancel", "drop"):
        outcomes = wheel.cancel_many(ids).outcomes if ids else {}
        done.done = {id_: "deleted" if act.verb == "drop" else how.value for id_, how in outcomes.items()}
        done.missing += [id_ for id_ in ids if id_ not in outcomes]
        return done
    if act.verb == "kill":
        for id_ in ids:
            killed = wheel.kill(id_, timeout_s=KILL_S)
            if killed:
                done.done[id_] = killed.value
            else:
                done.failed[id_] = _KILLED[killed]
        return done
    for id_ in ids:
        try:
            done.done[id_] = str(wheel.reschedule(id_, delay=act.delay_s))
        except NotFound:
            done.missing.append(id_)
        except FilewheelError as exc:  # another message has its key; or the disk refuses, which the next says too
            done.failed[id_] = str(exc)
    return done
