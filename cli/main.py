"""The command `filewheel`: global options, the verbs by name, and the end of every invocation.

A verb's module is loaded on use, so that `enqueue` does not load `demo`. Only here an error of a verb becomes one line
on stderr and a documented exit code.
Invariant: no error of the library or of the operating system ends in a traceback.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from typing import Any

import click

try:
    from filewheel import FilewheelError, NoWheel, __version__
except ImportError as exc:
    if getattr(exc, "kind", "") != "wrong-platform":
        raise
    sys.exit(f"filewheel: {exc}")  # the one error that is no verb's

from .failure import INTERRUPTED, MEANING, USAGE, failure_of
from .foreign import meant
from .inherited import settle
from .show.output import Output
from .signals import Abort, Quit, exits_with, until_exit
from .verb import common

VERBS = (
    "init",
    "enqueue",
    "cancel",
    "reschedule",
    "pause",
    "resume",
    "kill",
    "schedule",
    "unschedule",
    "inspect",
    "dead",
    "result",
    "run",
    "work",
    "when",
    "stats",
    "health",
    "history",
    "metrics",
    "top",
    "serve",
    "verify",
    "repair",
    "purge",
    "dump",
    "load",
    "diff",
    "backup",
    "replicate",
    "promote",
    "rejoin",
    "restore",
    "copy-server",
    "kafka",
    "timers",
    "demo",
    "bench",
    "doctor",
    "completion",
    "man",
)

_GROUPS = ("schedule", "inspect", "dead", "backup", "kafka", "timers")
"""Verbs with sub-verbs."""

_SHORT = {
    "pause": "Pause the wheel, a topic or a schedule until a resume.",
    "schedule": "Start recurring work; list, edit and load schedules.",
    "work": "Run a program's scheduler: its handlers are called.",
    "history": "Show how the last attempts ended, the newest first.",
    "metrics": "Show the metrics in the text format of Prometheus.",
    "top": "Watch the wheel on a terminal, and act on messages.",
    "serve": "Show the wheel as a web page.",
    "rejoin": "Make a former primary a backup of the new one.",
    "copy-server": "Serve a backup to a replicator on another machine.",
    "kafka": "Delay messages of Kafka, or call handlers for them.",
    "timers": "Draw timers that live in memory.",
    "doctor": "Describe installation, disk and wheel for an issue.",
}
"""Of the verbs whose first sentence is too long for a line of the list."""

_EPILOG = "\n\n".join(
    [
        "\b\nExamples:\n"
        "  $ filewheel init\n"
        "  $ filewheel enqueue --in 5m --topic mail 'remind ann'\n"
        "  $ filewheel inspect\n"
        "  $ filewheel run --once",
        "\b\nExit codes:\n" + "\n".join(f"  {code:>3}  {text}" for code, text in MEANING.items()),
        "Data goes to stdout, messages to stderr. On a terminal data is a table, piped it is JSON lines. "
        "The options above may also stand after the verb.",
    ]
)


class Root(click.Group):
    """The verbs, loaded on use, and the end of every invocation."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in VERBS:
            return None
        command = importlib.import_module(f".commands.{cmd_name.replace('-', '_')}", __package__).command
        assert isinstance(command, click.Command)
        command.short_help = _SHORT.get(cmd_name, command.short_help)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find a verb; for an unknown one, name the commands that it may mean."""
        if args and args[0] not in VERBS and not args[0].startswith("-") and not ctx.resilient_parsing:
            inner = {}
            for verb in _GROUPS:
                group = self.get_command(ctx, verb)
                assert isinstance(group, click.Group)
                inner[verb] = [name for name, one in group.commands.items() if not one.hidden]
            words = " or ".join(f"`filewheel {one}`" for one in meant(args[0], VERBS, inner))
            raise click.UsageError(f"no command {args[0]!r}" + (f"; did you mean {words}?" if words else ""), ctx)
        return super().resolve_command(ctx, args)

    def main(self, args: Sequence[str] | None = None, *_: Any, **extra: Any) -> Any:
        """Run one invocation and exit with its code."""
        extra.pop("prog_name", None)  # always filewheel, also as `python -m`
        given = list(sys.argv[1:] if args is None else args)
        out = extra.setdefault("obj", Output())
        extra["standalone_mode"] = False
        try:
            with out.heard():
                code = super().main(given, "filewheel", **extra)
            sys.stdout.flush()
        except BrokenPipeError:
            code = _leave_quietly()
        except Quit:  # a signal just before or behind the part of a verb that handles it
            code = 0
        except Abort:
            code = INTERRUPTED
        except SystemExit as exc:
            exits_with(exc.code if isinstance(exc.code, int) else 0)
            raise
        except (
            FilewheelError,
            click.ClickException,
            click.Abort,
            KeyboardInterrupt,
            OSError,
            RuntimeError,
            MemoryError,
        ) as exc:
            code = _fail(out, exc, given)
        code = code if isinstance(code, int) else 0
        exits_with(code)
        sys.exit(code)


_FAILURES = (
    FilewheelError, click.ClickException, click.Abort, KeyboardInterrupt, OSError, RuntimeError, MemoryError
)  # fmt: skip
"""What `failure_of` knows, and a RuntimeError of a defect, which it raises again."""


def _fail(out: Output, exc: BaseException, args: list[str]) -> int:
    """Report the error; return the exit code."""
    failure = failure_of(exc)
    if isinstance(exc, NoWheel) and out.dir == Output().dir and "://" not in (exc.path or ""):  # nobody named one
        failure.hint = "name the wheel with -C DIR or FILEWHEEL=DIR, or make one: `filewheel init`"
    # A --json after a wrong option counts too: parsing may have stopped before it.
    before = args[: args.index("--")] if "--" in args else args
    as_json = out.json or (isinstance(exc, click.UsageError) and "--json" in before)
    try:
        sys.stdout.flush()
    except OSError:
        _leave_quietly()
    out.fail(failure, as_json=as_json)
    return failure.code


def _leave_quietly() -> int:
    """After the reader of stdout has closed it: redirect Python's last flush to /dev/null."""
    try:
        sink = os.open(os.devnull, os.O_WRONLY)
        os.dup2(sink, sys.stdout.fileno())
        os.close(sink)
    except (OSError, ValueError):
        pass
    return 1


@click.command(
    "filewheel",
    cls=Root,
    invoke_without_command=True,
    epilog=_EPILOG,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@common(root=True)
@click.version_option(__version__, prog_name="filewheel", message="%(prog)s %(version)s")
@click.pass_context
def cli(ctx: click.Context) -> None:
    """A durable timing wheel in a directory: messages with a due time, fired on time, at least once.

    No server: the wheel is a directory, by default ./wheel. Enqueue from anywhere; one `filewheel run` fires what is
    due, a second one waits as its standby.
    """
    ctx.color = ctx.ensure_object(Output).colour_choice()
    if ctx.invoked_subcommand is None:
        # Help for people; in a script a missing verb is an error.
        click.echo(ctx.get_help(), err=True)
        ctx.exit(USAGE)


def main() -> None:
    """The entry point."""
    settle()
    until_exit()
    cli.main()
