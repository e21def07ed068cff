"""What a person pauses and resumes from `top` or the page: first proposed, then done, as acts on messages are.

Invariant: a proposal changes nothing, and an act is for the one pause that it names.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

from filewheel.checks import check_choice
from filewheel.errors import BadArgument
from filewheel.format.pauses import Pause, What, new_pause
from filewheel.wheel import Wheel

PauseVerb = Literal["pause", "resume"]
PAUSE_VERBS: tuple[PauseVerb, ...] = get_args(PauseVerb)


@dataclass(frozen=True)
class PauseAct:
    """A verb, and the pause that it makes or ends."""

    verb: PauseVerb
    pause: Pause

    @classmethod
    def of(cls, verb: str, what: str, name: str = "", why: str = "") -> PauseAct:
        """Make an act of texts. Raises BadArgument, TooLarge."""
        check_choice("verb", verb, PAUSE_VERBS)
        check_choice("what", what, get_args(What))
        if what == "wheel" and name:
            raise BadArgument("the pause of the whole wheel has no name", hint="what is topic or schedule")
        made = new_pause(name if what == "topic" else None, name if what == "schedule" else None, why)
        return cls(verb, made)  # type: ignore[arg-type]

    @property
    def _named(self) -> dict[str, Any]:
        return {} if self.pause.what == "wheel" else {self.pause.what: self.pause.name}


@dataclass(frozen=True)
class PauseProposal:
    """What an act would do."""

    act: PauseAct
    is_needed: bool
    """False when it is paused already, or is not paused by this name: there is nothing to do."""
    question: str
    """What to ask before it is done, or why there is nothing to do."""

    def to_json(self) -> dict[str, Any]:
        """Return all fields."""
        pause = self.act.pause
        return {
            "verb": self.act.verb,
            "what": pause.what,
            "name": pause.name,
            "needed": self.is_needed,
            "question": self.question,
        }


@dataclass(frozen=True)
class PauseDone:
    """What an act did."""

    act: PauseAct
    text: str
    """What to report."""

    def to_json(self) -> dict[str, Any]:
        """Return all fields."""
        return {"verb": self.act.verb, "text": self.text}


def propose_pause(wheel: Wheel, act: PauseAct) -> PauseProposal:
    """Look what an act would do. Cost: one small file. Raises Damaged, DiskError."""
    pauses = wheel.paused()
    is_paused = pauses.find(act.pause) is not None
    if act.verb == "pause":
        if is_paused:
            return PauseProposal(act, False, f"{_first(act.pause)} is paused already.")
        text = f"Pause {act.pause}? Nothing of it begins until a resume; what runs goes on."
        return PauseProposal(act, True, text)
    if not is_paused:
        return PauseProposal(act, False, f"{_first(act.pause)} is not paused by this name.")
    stays = act.pause.what != "wheel" and pauses.wheel is not None
    then = "It stays paused while the wheel is." if stays else "What is due fires at once, in order."
    return PauseProposal(act, True, f"Resume {act.pause}? {then}")


def perform_pause(wheel: Wheel, act: PauseAct) -> PauseDone:
    """Do it. Raises as Wheel.pause and Wheel.resume."""
    if act.verb == "pause":
        wheel.pause(**act._named, why=act.pause.why)
        return PauseDone(act, f"{act.pause} is paused")
    ended = wheel.resume(**act._named)
    return PauseDone(act, f"{act.pause} {'is resumed' if ended else 'was not paused any more'}")


def _first(pause: Pause) -> str:
    text = str(pause)
    return text[0].upper() + text[1:]
