"""`schedule`: starts a schedule of plain messages; its verbs list, edit and load them.

The first argument is the name of a schedule unless it is one of the verbs, so those are no names here.
Invariant: a verb in the place of a name is an error that says so.
"""

from __future__ import annotations

from typing import Any, get_args

import click

from filewheel import BadArgument, OnConflict
from filewheel.message import ARGS
from filewheel.scheduling.cron import read_recurrence

from ...failure import USAGE
from ...input.body import read_body
from ...input.params import DURATION, HEADER, JSON_ARGS
from ...input.terms import terms_of
from ...input.when import check_when, maybe_at, once, read_count, schedule_options, split
from ...show.output import Output
from ...show.schedules import print_planted
from ...times import US_PER_S
from ...verb import common, examples
from .edit import edit
from .load import load
from .show import show


@click.command("NAME")
@common()
@schedule_options
@click.option("--topic", default="", help="The destination of its messages, as text.")
@click.option(
    "--args", "arguments", type=JSON_ARGS, metavar="JSON",
    help="In place of BODY: arguments for the handler that --topic names, which `filewheel work` calls.",
)  # fmt: skip
@click.option("--header", "headers", type=HEADER, multiple=True, metavar="K=V", help="A header; may be repeated.")
@click.option("--retries", type=click.IntRange(min=0), metavar="N", help="In place of the --retries of `run`.")
@click.option("--timeout", type=DURATION, metavar="DUR", help="In place of the --timeout of `run`.")
@click.option(
    "--on-conflict", type=click.Choice(get_args(OnConflict)), default="replace", show_default=True,
    help="When there is a schedule of this name: fail (exit code 5), leave it as it is, or replace it.",
)  # fmt: skip
@click.argument("words", nargs=-1, required=True, metavar="(CRON | every DUR) [BODY]")
@click.pass_obj
def start(
    out: Output,
    words: tuple[str, ...],
    at: str | None,
    tz: str | None,
    missed: str | None,
    grace: int | None,
    jitter: int | None,
    start: str | None,
    end: str | None,
    count: str | None,
    topic: str,
    arguments: bytes | None,
    headers: tuple[tuple[str, str], ...],
    retries: int | None,
    timeout: int | None,
    on_conflict: str,
) -> None:
    """Start a schedule."""
    given = split(words, has_time=at is not None)
    when: Any = once(at, tz) if at is not None else check_when(given.name, given.when or "", tz or "UTC")
    options: dict[str, Any] = {
        "tz": tz or "UTC", "missed": missed or "once", "start": maybe_at(start, tz), "end": maybe_at(end, tz),
        "count": None if count is None else read_count(count), "topic": topic,
        "headers": {**dict(headers), **terms_of(retries, timeout)},
        "on_conflict": on_conflict,
    }  # fmt: skip
    options |= {} if grace is None else {"grace_s": grace / US_PER_S}
    options |= {} if jitter is None else {"jitter_s": jitter / US_PER_S}
    if arguments is not None:
        if given.body is not None:
            raise click.UsageError("give BODY or --args, not both")
        if not topic:
            raise click.UsageError("--args are those of a handler: name it with --topic")
        options["headers"][ARGS] = "json"
        payload = arguments
    else:
        payload = read_body(out, given.body, is_work=True)
    with out.wheel() as wheel:
        before = wheel.schedules(given.name)
        id_ = wheel.schedule(given.name, when, payload, **options)
        done = "unchanged" if id_.kept else "replaced" if before else "started"
        print_planted(out, wheel, given.name, done)
        if not wheel.has_keeper():
            fires = "filewheel work MODULE:NAME" if arguments is not None else "filewheel run -- sh"
            out.note(f"no keeper runs: `{fires}` fires it")


class _Schedule(click.Group):
    """The verbs, and a schedule's NAME in the place of one."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        verb = args[0]
        if verb not in self.commands:
            return "NAME", start, args
        if len(args) > 1 and _reads_as_times(args[1]):
            raise click.UsageError(
                f"{verb!r} is a verb of `filewheel schedule`, so it cannot be the name of a schedule", ctx
            )
        return super().resolve_command(ctx, args)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        start.format_options(ctx, formatter)
        self.format_commands(ctx, formatter)


def _reads_as_times(word: str) -> bool:
    if word.lower() == "every" or word == "--at":
        return True
    try:
        read_recurrence(word)
    except BadArgument:
        return False
    return " " in word or word.startswith("@")


@click.group(
    "schedule",
    cls=_Schedule,
    invoke_without_command=True,
    subcommand_metavar='NAME (CRON | "every 90s" | --at TIME) [BODY] | list | edit | load',
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
    epilog=examples(
        """
        $ filewheel schedule nightly "30 3 * * *" --tz Europe/Berlin './backup.sh'
        $ filewheel schedule tick "every 90s" 'date >> ticks'
        $ filewheel schedule trial --at 2030-01-01T09:00Z --topic mail 'it ends'
        $ echo 'make report' | filewheel schedule report "0 9 * * mon-fri"
        $ filewheel schedule list
        """
    ),
)
@common()
@click.pass_context
def command(ctx: click.Context) -> None:
    """Start recurring work in the wheel: what cron and at do, in one place that survives a crash.

    The body becomes a message at each time of a cron expression (five fields, or six with seconds), after each
    interval, or once --at a time. `filewheel run -- sh` runs it; without BODY it is read from a pipe, and `-` reads
    stdin. The same again changes nothing; other options replace the schedule. `unschedule` ends it.
    """
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help(), err=True)
        ctx.exit(USAGE)


for _verb in (show, edit, load):
    command.add_command(_verb)
