"""Shared by all verbs: the global options, accepted before and after the verb, and examples in the help.

A test runs every example line that starts with `$ filewheel`.
Invariant: `--json` means the same before and after the verb.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import click
from click.shell_completion import CompletionItem

from .input.params import DELAY, DUE, ParamType
from .show.output import Output

F = TypeVar("F", bound=Callable[..., Any])


class _Dir(ParamType):
    """A directory's name; the library checks whether it is a wheel."""

    name = "dir"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Refuse an empty name: an unset variable in a script must not mean ./wheel."""
        if value == "":
            self.fail("the name of the directory is empty", param, ctx)
        return value

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        return [CompletionItem(incomplete, type="dir")]


def _output(ctx: click.Context) -> Output:
    return ctx.ensure_object(Output)


def _set(name: str) -> Callable[[click.Context, click.Parameter, Any], None]:
    def callback(ctx: click.Context, param: click.Parameter, value: Any) -> None:
        # Absent is not "off": it must not undo the option before the verb.
        if value or (name == "json" and value is not None):
            setattr(_output(ctx), name, value)
        if name == "colour":
            ctx.color = ctx.find_root().color = _output(ctx).colour_choice()

    return callback


def common(*, root: bool = False, own: tuple[str, ...] = (), wheel: bool = True) -> Callable[[F], F]:
    """Add the global options. Below the root the help shows --json, and -C of a verb for a `wheel`.

    The root's help lists the others. For a verb's `own` option of the same name, the global one must stand before the
    verb.
    """
    options = {
        "dir": click.option(
            "-C", "dir", metavar="DIR", type=_Dir(), hidden=not (root or wheel), callback=_set("dir"), is_eager=True,
            expose_value=False, envvar="FILEWHEEL" if root else None,
            help="The wheel's directory.  [env: FILEWHEEL; default: ./wheel]",
        ),
        "json": click.option(
            "--json/--no-json", "json", default=None, callback=_set("json"), is_eager=True, expose_value=False,
            help="JSON lines, or text for people." + ("  [default: text on a terminal]" if root else ""),
        ),
        "colour": click.option(
            "--color", "colour", type=click.Choice(["auto", "always", "never"]), hidden=not root, default=None,
            callback=_set("colour"), is_eager=True, expose_value=False,
            help="Colour; auto is on a terminal, unless NO_COLOR is set.",
        ),
        "quiet": click.option(
            "-q", "--quiet", "quiet", is_flag=True, hidden=not root, callback=_set("quiet"), is_eager=True,
            expose_value=False, help="Print only warnings and errors.",
        ),
        "force": click.option(
            "--force", "force", is_flag=True, hidden=not root, callback=_set("force"), is_eager=True,
            expose_value=False, help="Use a wheel on a network file system; locks may not hold there.",
        ),
    }  # fmt: skip

    def add(function: F) -> F:
        for name, option in reversed(options.items()):
            if name not in own:
                function = option(function)
        return function

    return add


def examples(text: str) -> str:
    """Return the examples as an unwrapped epilog."""
    lines = inspect.cleandoc(text).splitlines()
    return "\n".join(["\b", "Examples:", *(f"  {line}" for line in lines)])


_OFFERS = {
    "topic": "topic", "key": "key", "schedule": "schedule", "name": "schedule", "names": "schedule",
    "words": "schedule", "tz": "zone",
    "id_": "id", "ids": "id",
}  # fmt: skip
"""Parameter of a verb → what a shell completes it with (input/complete.py)."""


def _offer(command: click.Command, *, wheel: bool) -> None:
    """Let a shell complete the parameters of a verb by their names: from the wheel, and time zones."""
    for param in command.params:
        kind = _OFFERS.get(param.name or "")
        if kind == "zone" or (kind and wheel):
            vars(param)["shell_complete"] = partial(_complete, kind, param)


def _complete(kind: str, param: click.Parameter, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
    from .input import complete  # not for each command line

    found: list[CompletionItem] = getattr(complete, f"complete_{kind}")(ctx, param, incomplete)
    return found


def verb(
    name: str, example: str, *, own: tuple[str, ...] = (), wheel: bool = True
) -> Callable[[Callable[..., Any]], click.Command]:
    """Make a function a verb: a click command with the global options, except its `own`, and examples.

    Without `wheel` it needs none, and its help does not show -C.
    """

    def make(function: Callable[..., Any]) -> click.Command:
        decorated: Callable[..., Any] = common(own=own, wheel=wheel)(click.pass_obj(function))
        made: click.Command = click.command(name, epilog=examples(example))(decorated)
        _offer(made, wheel=wheel)
        return made

    return make


def due_options(function: F) -> F:
    """Add --in and --at."""
    function = click.option(
        "--at", "at", type=DUE, metavar="TIME",
        help="When: 09:00 or 9am (the next one), 'tomorrow 9:00', 'mon 09:00', 2027-01-01T09:00, ...+01:00, ...Z, "
        "@1798790400, now.",
    )(function)  # fmt: skip
    return click.option(
        "--in",
        "in_us",
        type=DELAY,
        metavar="DUR",
        help="How long from now: 90 (seconds), 90s, 1h30m, '1 hour', 2d, 250ms.",
    )(function)
