"""`inspect`: show pending messages as a summary, as a list, one by one, or record by record.

Takes no lock and changes nothing, so it works with or without a keeper, and on a damaged wheel.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import click
from click.shell_completion import CompletionItem

from filewheel import BadArgument, Message, MessageId, Overdue, Pauses, Snapshot, schedule_of
from filewheel.message import DETAILS, HISTORY, KEY, OF_SCHEDULE, REASON, SCHEDULE
from filewheel.timespec import at_us

from .. import times
from ..failure import check_damage
from ..input.complete import complete_id
from ..lost import lost_of, not_pending
from ..show.calls import arguments_of, call_text, message_fields, overdue_advice, schedule_text
from ..show.members import find_set, is_primary, set_fields, set_line
from ..show.output import Output
from ..show.pauses import held_fields, pause_rows, pause_text, pauses_of
from ..show.picture import CountsAhead, draw_rows, draw_view
from ..show.progress import ProgressLine
from ..show.runs import overview_words, run_words, running_of, state_fields
from ..show.text import away, clip, count, full_time, safe, safe_block, show_bytes, size, width
from ..times import to_datetime
from ..verb import common, examples, verb
from . import inspect_files, inspect_list, inspect_schedules
from .stats import stats_fields

_TOPICS_SHOWN = 8
_TOPIC_COLUMNS = 24
_OTHER_ROWS = 32
"""The picture's maximum share of a terminal's height; topics have the rest."""
_WIDE = 160
"""The maximum width: longer rows would be hard to follow."""
_ROLES = {
    "bar": ("cyan", False, False),
    "axis": (None, False, True),
    "title": (None, True, False),
    "late": ("red", True, False),
}


class _Inspect(click.Group):
    """A group in which an id stands for `message ID`."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in self.commands and not args[0].startswith("-"):
            try:
                MessageId.parse(args[0])
            except BadArgument:
                if ctx.resilient_parsing:
                    return None, None, args
                words = ", ".join(self.commands)
                raise click.UsageError(f"{args[0]!r} is neither a message id nor one of: {words}", ctx) from None
            return "message", self.commands["message"], args
        return super().resolve_command(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete a sub-verb, or an id."""
        return super().shell_complete(ctx, incomplete) + complete_id(ctx, self.params[0], incomplete)


@click.group(
    "inspect",
    cls=_Inspect,
    invoke_without_command=True,
    subcommand_metavar="[list | schedules | slot | journal | ID] ...",
    epilog=examples(
        """
        $ filewheel inspect
        $ filewheel inspect --json
        $ filewheel inspect "$(filewheel inspect list --limit 1 --ids)"
        """
    ),
)
@common()
@click.option("--no-topics", is_flag=True, help="Do not count by topic, which reads every message.")
@click.pass_context
def command(ctx: click.Context, no_topics: bool) -> None:
    """Show the pending messages.

    Prints the totals, the next due time and a histogram of due times. Takes no lock; works with a keeper running, with
    none, and on a damaged wheel. `filewheel inspect ID` shows one message whole.
    """
    if ctx.invoked_subcommand is None:
        _overview(ctx.ensure_object(Output), no_topics)


command.add_command(inspect_list.command)
command.add_command(inspect_schedules.command)
command.add_command(inspect_files.slot)
command.add_command(inspect_files.journal)


# -- at a glance ----------------------------------------------------------------------------------------------


def _overview(out: Output, no_topics: bool) -> None:
    ahead = CountsAhead(times.now_us())
    with out.wheel() as wheel:
        stats = wheel.stats()
        ahead.fill(wheel.histogram([to_datetime(us) for us in ahead.edges_us]))
        found_set = find_set(out)
        running = running_of(out, wheel)
        due = wheel.overdue(to_datetime(ahead.now_us)) if ahead.overdue else Overdue(ahead.now_us)
        idle = due.count and not stats.keeper_up and is_primary(found_set) and not out.wants_json
        advice = overdue_advice(wheel, due, ahead.now_us) if idle else []
        topics: dict[str, int] = {}
        if not no_topics:
            with out.progress("counting by topic", stats.pending) as progress, wheel.snapshot() as snapshot:
                topics = _topics_of(snapshot, progress)
                stats.damaged = max(stats.damaged, len(snapshot.problems()))  # this has read the bodies too
    if out.wants_json:
        by_topic = None if no_topics else dict(sorted(topics.items(), key=_most_first))
        fields: dict[str, Any] = {"stats": stats_fields(stats), "topics": by_topic, "histogram": ahead.to_json()}
        fields |= {"running": {"claimed": running.claimed, "begun": running.begun}, "overdue_paused": due.paused}
        out.record(fields | {"set": set_fields(found_set) if found_set else None})
    else:
        next_us = None if stats.next_due is None else at_us(stats.next_due)
        for line in _headline(out, stats_fields(stats), ahead, due, next_us, advice, fires=is_primary(found_set)):
            out.write(line)
        if running:
            line = f"{'running'.ljust(13)}{overview_words(running, ahead.now_us)}"
            out.write(clip(safe(line), out.columns, "…" if out.blocks else "..."))
        for line in _paused_lines(stats.paused, due):
            out.write(f"{out.style('paused'.ljust(13), 'yellow', bold=True)}{safe(line)}")
        if found_set is not None:
            out.write(clip(safe(set_line(found_set)), out.columns, "…" if out.blocks else "..."))
        for line in _panels(out, ahead, topics):
            out.write(line)
    check_damage(stats.damaged)


def _topics_of(snapshot: Snapshot, progress: ProgressLine) -> dict[str, int]:
    counts: Counter[str] = Counter()
    for number, message in enumerate(snapshot.messages(), 1):
        counts[message.topic] += 1
        progress.at(number)
    return counts


def _most_first(item: tuple[str, int]) -> tuple[int, str]:
    return -item[1], item[0]


def _headline(
    out: Output,
    stats: dict[str, Any],
    ahead: CountsAhead,
    due: Overdue,
    next_us: int | None,
    advice: list[str],
    *,
    fires: bool,
) -> list[str]:
    name = out.style(safe(out.dir), bold=True)
    if next_us is None:
        first = "nothing is pending"
    else:
        which = "the next" if next_us > ahead.now_us else "the first due"
        first = f"{count(stats['pending'], 'message')} pending, {which} {away(next_us - ahead.now_us)}"
    where = " of another pid namespace" if stats["keeper_namespace"] else ""
    none = "no keeper running" if fires else "fires nothing"
    keeper = f"keeper {stats['keeper_pid'] or 'running'}{where}" if stats["keeper_up"] else none
    fits = width(safe(out.dir)) + width(first) + width(keeper) + 4 <= out.columns
    lines = [f"{name}  {first}; {keeper}"] if fits else [name, f"{first}; {keeper}"]
    if due.count:
        title = out.style("overdue".ljust(13), "red", bold=True)
        first, *more = advice or [count(due.count, "message")]
        lines += [title + first, *(" " * 13 + line for line in more)]
    if stats["dead"]:
        title = out.style("dead letters".ljust(13), "red", bold=True)
        lines.append(f"{title}{stats['dead']:,}; `filewheel dead list` lists them")
    if stats["quarantined"]:
        title = out.style("quarantine".ljust(13), "red", bold=True)
        lines.append(f"{title}{count(stats['quarantined'], 'item')}; `filewheel verify` lists them")
    if stats["damaged"]:
        title = out.style("damaged".ljust(13), "red", bold=True)
        lines.append(f"{title}{count(stats['damaged'], 'place')}; `filewheel verify` names each")
    return lines


def _paused_lines(pauses: Pauses | None, due: Overdue) -> list[str]:
    """Return a line for each pause, and one for the due messages that they hold."""
    lines = pause_rows(pauses, due.now_us)
    if due.paused:
        lines.append(count(due.paused, "due message fires", "due messages fire") + " after the resume")
    return lines


def _panels(out: Output, ahead: CountsAhead, topics: dict[str, int]) -> list[str]:
    blocks = out.blocks

    def style(text: str, role: str) -> str:
        colour, bold, dim = _ROLES[role]
        return out.style(text, colour, bold=bold, dim=dim)

    height = 2 if out.rows < 36 else 3
    far = ahead.far()
    lines: list[str] = []
    if any(sum(ahead.counts(view)) for view in ahead.views) or any(n for _, n in far):
        for view in ahead.views:
            lines += ["", *draw_view(view, ahead.counts(view), height, style, blocks=blocks)]
        rows = draw_rows("beyond", far, style, blocks=blocks)
        lines += ["", *rows] if rows else []
    if len(topics) > 1 or any(topics):
        ranked = sorted(topics.items(), key=_most_first)
        dots = "…" if blocks else "..."
        most = max(_TOPICS_SHOWN, out.rows - _OTHER_ROWS)
        across = max(_TOPIC_COLUMNS, min(out.columns, _WIDE) // 2 - 16)
        labels = [(clip(safe(name) or "(none)", across, dots), number) for name, number in ranked[:most]]
        lines += ["", *draw_rows("by topic", labels, style, blocks=blocks, columns=min(out.columns, _WIDE))]
        if len(ranked) > most:
            lines.append(f"  {dots} and {count(len(ranked) - most, 'more topic')}")
    return lines


# -- one message ----------------------------------------------------------------------------------------------


@verb(
    "message",
    """
    $ filewheel inspect "$(filewheel enqueue --in 1h hi)"
    $ filewheel inspect "$(filewheel enqueue --in 1h hi)" --body
    """,
)
@click.option("--body", is_flag=True, help="Only the payload, byte for byte.")
@click.argument("id_", metavar="ID")
def message(out: Output, body: bool, id_: str) -> None:
    """Show one message whole: short, `inspect ID`.

    Of one that runs since when and where, of a handler's call its arguments, of a dead letter why it died, and each
    attempt that failed, with the end of its traceback, or of what the command wrote to stderr.
    """
    wanted = MessageId.parse(id_)
    now_us = times.now_us()
    with out.wheel() as wheel:
        found = wheel.get(wanted)
        if found is None:
            raise lost_of(wheel, [wanted]) or not_pending(wheel, wanted)
        running = running_of(out, wheel)
        pauses = pauses_of(wheel)
    if body:
        out.raw(found.payload)
        return
    if out.wants_json:
        states = {} if found.is_dead else state_fields(found, running)
        out.record(message_fields(found) | states | held_fields(found, pauses))
        return
    rows: list[tuple[str, str]] = [("id", str(found.id))]
    if found.root is not None:
        rows.append(("first id", str(found.root)))
    rows.append(("due", f"{full_time(found.due_us)}, {away(found.due_us - now_us)}"))
    rows += [("paused", pause_text(pause, now_us)) for pause in pauses.of(found)]
    if found.died_us is not None:
        rows.append(("died", f"{full_time(found.died_us)}, {away(found.died_us - now_us)}"))
        rows.append(("reason", found.reason or ""))
    else:
        run = running.find(found.id)
        state = running.pending_state(found.id)
        rows.append(("state", state if run is None or state != "running" else run_words(run, now_us)))
    rows.append(("topic", found.topic or "(none)"))
    if found.died_us is None:
        rows.append(("try", str(found.attempt + 1)))
    rows.append(("enqueued", f"{full_time(found.enqueued_us)}, {away(found.enqueued_us - now_us)}"))
    if found.key is not None:
        rows.append(("key", found.key))
    rows += _call_rows(found)
    definition = schedule_of(found)
    shown = {
        KEY,
        REASON,
        OF_SCHEDULE,
        SCHEDULE if definition is not None and not definition.unreadable else "",
        *((HISTORY, DETAILS) if found.attempts else ()),
    }
    rows += [("header", f"{key}: {value}") for key, value in found.headers.items() if key not in shown]
    rows.append(("payload", size(len(found.payload))))
    _print_pairs(out, rows)
    if found.payload and arguments_of(found) is None:
        out.write("")
        out.write(safe_block(show_bytes(found.payload)).rstrip("\n"))


def _call_rows(found: Message) -> list[tuple[str, str]]:
    """Return the scheduler's rows: the call, the occurrence, and the failed attempts."""
    rows: list[tuple[str, str]] = []
    call, definition = call_text(found), schedule_of(found)
    if call is not None:
        rows.append(("call", call))
    if definition is not None:
        rows.append(("schedule", schedule_text(definition)))
    elif found.schedule_name is not None:
        rows.append(("schedule", found.schedule_name))
    for a in found.attempts:
        rows.append(("failed", f"{full_time(a.at_us)}, try {a.attempt + 1}: {a.error}"))
        rows += [("", line) for line in a.details.split("\n") if a.details]
    return rows


def _print_pairs(out: Output, rows: Sequence[tuple[str, str]]) -> None:
    left = max(len(name) for name, _ in rows) + 2
    for name, value in rows:
        text = safe(value) if name else out.style(f"| {safe_block(value)}", dim=True)
        out.write(f"{out.style(name.ljust(left), bold=True)}{text}")


command.add_command(message)
