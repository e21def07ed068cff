"""What all verbs share: the global options, accepted before and after the verb, and examples in the help.

Every line of an example that starts with `$ filewheel` is run by a test, so what the help shows works.
Invariant: `--json` means the same, wherever it stands.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

import click
from click.shell_completion import CompletionItem

from .input.params import DELAY, TIME, ParamType
from .show.output import Output

F = TypeVar("F", bound=Callable[..., Any])


class _Dir(ParamType):
    """A directory's name; whether it is a wheel is for the library to say."""

    name = "dir"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Refuse an empty name: a variable of a script that was never set must not mean ./wheel."""
        if value == "":
            self.fail("the name of the directory is empty", param, ctx)
        return value

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        return [CompletionItem(incomplete, type="dir")]


def _output(ctx: click.Context) -> Output:
    return ctx.ensure_object(Output)


def _set(name: str) -> Callable[[click.Context, click.Parameter, Any], None]:
    def callback(ctx: click.Context, param: click.Parameter, value: Any) -> None:
        # Absent is not "off": after the verb it must not undo what stands before it.
        if value or (name == "json" and value is not None):
            setattr(_output(ctx), name, value)
        if name == "colour":
            ctx.color = ctx.find_root().color = _output(ctx).colour_choice()

    return callback


def common(*, root: bool = False, own: tuple[str, ...] = ()) -> Callable[[F], F]:
    """Add the global options. Below the root only --json shows in the help: the others are listed there.

    Of those that a verb has of its `own`, meaning something else, the global one stands before the verb only.
    """
    options = {
        "dir": click.option(
            "-C", "dir", metavar="DIR", type=_Dir(), hidden=not root, callback=_set("dir"), is_eager=True,
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
            expose_value=False, help="Say only what has to be heard.",
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
    """Return the examples as an epilog that click does not wrap."""
    lines = inspect.cleandoc(text).splitlines()
    return "\n".join(["\b", "Examples:", *(f"  {line}" for line in lines)])


def verb(name: str, example: str, *, own: tuple[str, ...] = ()) -> Callable[[Callable[..., Any]], click.Command]:
    """Make a function a verb: a click command with the global options, but for its `own`, and its examples."""

    def make(function: Callable[..., Any]) -> click.Command:
        decorated: Callable[..., Any] = common(own=own)(click.pass_obj(function))
        made: click.Command = click.command(name, epilog=examples(example))(decorated)
        return made

    return make


def due_options(function: F) -> F:
    """Add --in and --at."""
    function = click.option(
        "--at", "at", type=TIME, metavar="TIME",
        help="When: 09:00 (the next one), 2027-01-01T09:00, ...+01:00, ...Z, @1798790400, now.",
    )(function)  # fmt: skip
    return click.option(
        "--in", "in_us", type=DELAY, metavar="DUR", help="How long from now: 90 (seconds), 90s, 1h30m, 2d, 250ms."
    )(function)
