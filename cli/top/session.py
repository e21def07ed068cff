"""A person at the terminal: keys choose, ask and act; the picture follows the wheel until `q` or a signal.

Invariant: nothing of the wheel is changed before a question was answered with `y`.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace

from filewheel import FilewheelError, Message, MessageId, Pause
from filewheel.live.acts import Act, Verb, perform, propose
from filewheel.live.pausing import PauseAct, perform_pause, propose_pause
from filewheel.live.wheel_view import WheelView

from .. import times
from ..show.output import Output
from ..show.pauses import pause_text
from ..signals import Quit
from .frame import Shown, frame, head
from .keys import Keyboard
from .looker import LISTS, Item, Looker, Wanted
from .screen import Screen
from .whole import whole_lines

_DRAW_S = 0.5
_VERBS: dict[str, Verb] = {"c": "cancel", "f": "reschedule", "k": "kill", "r": "revive", "x": "drop"}
_FOR = {
    "cancel": "pending messages",
    "reschedule": "pending messages",
    "revive": "dead letters",
    "drop": "dead letters",
}


@dataclass
class _Typing:
    """What is being typed, and what becomes of it."""

    label: str
    then: Callable[[str], None]
    text: str = ""


class Session:
    """One run of `top`."""

    def __init__(self, out: Output, view: WheelView, interval_s: float) -> None:
        self._out = out
        self._view = view
        self._interval_s = interval_s
        self._shown = Shown()
        self._pages: list[MessageId | None] = [None]
        self._question: Callable[[], str] | None = None
        """Does what was asked, and returns what to report."""
        self._typing: _Typing | None = None
        self._over = False
        self._looker: Looker

    def run(self) -> None:
        """Show the wheel until `q`, Ctrl-C or another signal."""
        with (
            Keyboard() as keyboard,
            Screen() as screen,
            Looker(self._view, Wanted(limit=self._rows()), self._interval_s) as self._looker,
        ):
            try:
                while not self._over:
                    size = shutil.get_terminal_size((80, 24))
                    screen.draw(self._lines(size.columns, size.lines), (size.columns, size.lines))
                    for key in keyboard.wait(_DRAW_S, self._looker.fd):
                        self._press(key)
            except (Quit, EOFError):
                pass

    def _lines(self, columns: int, rows: int) -> list[str]:
        sight = self._looker.sight
        if sight.wanted != self._looker.wanted:  # the list is not there yet: no item is chosen by mistake
            sight = replace(sight, wanted=self._looker.wanted, items=())
        self._shown.chosen = max(0, min(self._shown.chosen, len(sight.items) - 1))
        if self._typing is not None:
            self._shown.line = f"{self._typing.label}{self._typing.text}_"
        return frame(self._out, sight, self._shown, columns, rows, times.now_us())

    # -- keys ----------------------------------------------------------------------------------------------------

    def _press(self, key: str) -> None:
        if self._typing is not None:
            self._type(key)
        elif self._question is not None:
            self._answer(key)
        elif self._shown.whole is not None:
            self._shown.whole = None
        else:
            self._shown.line = ""
            self._command(key)

    def _command(self, key: str) -> None:
        if key == "q":
            self._over = True
        elif key in ("up", "down", "home"):
            step = {"up": -1, "home": -self._shown.chosen}.get(key, 1)
            self._shown.chosen = max(0, min(self._shown.chosen + step, len(self._looker.sight.items) - 1))
        elif key in ("tab", "back-tab"):
            step = 1 if key == "tab" else -1
            self._list(LISTS[(LISTS.index(self._looker.wanted.name) + step) % len(LISTS)])
        elif key.isdecimal() and 1 <= int(key) <= len(LISTS):
            self._list(LISTS[int(key) - 1])
        elif key in ("page-down", " ", "page-up"):
            self._turn_page(key)
        elif key == "/":
            self._typing = _Typing("topic (* and ?): ", self._search, self._looker.wanted.topic or "")
        elif key == "enter":
            self._show()
        elif key in _VERBS:
            self._propose(_VERBS[key])
        elif key in ("p", "P"):
            self._propose_pause(whole=key == "P")

    def _type(self, key: str) -> None:
        assert self._typing is not None
        if key in ("enter", "escape"):
            typing, self._typing, self._shown.line = self._typing, None, ""
            if key == "enter":
                typing.then(typing.text)
        elif key == "backspace":
            self._typing.text = self._typing.text[:-1]
        elif len(key) == 1 and key.isprintable():
            self._typing.text += key

    # -- lists ---------------------------------------------------------------------------------------------------

    def _rows(self) -> int:
        return max(1, shutil.get_terminal_size((80, 24)).lines)

    def _list(self, name: str) -> None:
        self._pages = [None]
        self._shown.chosen = 0
        self._looker.want(Wanted(name, self._looker.wanted.topic, limit=self._rows()))

    def _search(self, topic: str) -> None:
        self._pages = [None]
        self._shown.chosen = 0
        self._looker.want(replace(self._looker.wanted, topic=topic or None, after=None))

    def _turn_page(self, key: str) -> None:
        if key == "page-up":
            self._pages = self._pages[:-1] or [None]
        elif self._looker.sight.next_id is not None:
            self._pages.append(self._looker.sight.next_id)
        self._shown.chosen = 0
        self._looker.want(replace(self._looker.wanted, after=self._pages[-1]))

    def _item(self) -> Item | None:
        sight = self._looker.sight
        return sight.items[self._shown.chosen] if sight.wanted == self._looker.wanted and sight.items else None

    def _message(self) -> Message | None:
        """Return the chosen message; of a run or a schedule, the message behind it. Raises FilewheelError."""
        item = self._item()
        if item is None or isinstance(item, Pause | Message):
            return item if isinstance(item, Message) else None
        return item[1] if isinstance(item, tuple) else self._view.message(item.id)

    def _show(self) -> None:
        item = self._item()
        if isinstance(item, Pause):
            self._shown.line = pause_text(item, times.now_us())
            return
        try:
            message = self._message()
        except FilewheelError as exc:
            self._shown.line = str(exc)
            return
        if message is None:
            self._shown.line = "it is not pending any more"
            return
        self._shown.whole = whole_lines(message, times.now_us())
        self._shown.line = "any key goes back"

    # -- acts ----------------------------------------------------------------------------------------------------

    def _propose(self, verb: Verb) -> None:
        try:
            message = self._message()
            if message is None:
                self._shown.line = "nothing is chosen, or it is not pending any more"
                return
            proposal = propose(self._view.wheel(), Act(verb, (message.id,)))
        except FilewheelError as exc:
            self._shown.line = str(exc)
            return
        if not proposal.found:
            self._shown.line = f"{verb} is for {_FOR[verb]}, and this is none, or it is gone"
            return
        self._question = lambda: perform(self._view.wheel(), proposal.act).text
        self._shown.line = f"{proposal.question} {proposal.found[0].topic or '(no topic)'}  y/n"

    def _propose_pause(self, *, whole: bool) -> None:
        """Ask whether to pause the topic or schedule of what is chosen, or the wheel; or to resume what holds it."""
        try:
            act = self._pause_act(Pause() if whole else self._item())
            if act is None:
                self._shown.line = "nothing is chosen; P is for the whole wheel"
                return
            proposal = propose_pause(self._view.wheel(), act)
        except FilewheelError as exc:
            self._shown.line = str(exc)
            return
        if proposal.is_needed:
            self._question = lambda: perform_pause(self._view.wheel(), act).text
        self._shown.line = proposal.question + ("  y/n" if proposal.is_needed else "")

    def _pause_act(self, item: Item | None) -> PauseAct | None:
        if item is None:
            return None
        pauses = self._view.paused()
        if isinstance(item, Pause):
            held = pauses.find(item)
            return PauseAct("pause", item) if held is None and item.what == "wheel" else PauseAct("resume", item)
        if isinstance(item, tuple):
            made, holding = Pause("schedule", item[0].name), pauses.of(item[1])
        else:
            made = Pause("topic", item.topic)
            holding = pauses.of(item) if isinstance(item, Message) else pauses.holding(item.topic)
        return PauseAct("resume", holding[0]) if holding else PauseAct("pause", made)

    def _answer(self, key: str) -> None:
        """Act at a `y`; any other key means no."""
        do, self._question = self._question, None
        assert do is not None
        if key not in ("y", "Y"):
            self._shown.line = "nothing was done"
            return
        try:
            self._shown.line = do()
        except FilewheelError as exc:
            self._shown.line = str(exc)
        self._looker.look_again()


def still(out: Output, view: WheelView) -> None:
    """Write one picture, for a terminal that cannot be drawn over. Raises FilewheelError."""
    from .frame import items, picture
    from .looker import look

    sight = look(view, Wanted(limit=10))
    if sight.error is not None and sight.live is None:
        raise sight.error
    now_us = times.now_us()
    lines = head(out, sight, out.columns, now_us)
    lines += picture(out, sight, out.columns, 3 * 4, now_us)
    lines += items(out, sight, Shown(chosen=-1), out.columns, 10, now_us)
    for line in lines:
        out.write(line)
