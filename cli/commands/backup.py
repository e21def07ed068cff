"""`backup`: other wheels that hold the same messages, on other disks: added, listed, verified, removed."""

from __future__ import annotations

import contextlib
import os
from shlex import quote
from typing import Literal, NamedTuple, NoReturn

import click
from click.shell_completion import CompletionItem

from filewheel import (
    BackupCheck,
    FilewheelError,
    LinkReport,
    Member,
    MemberStatus,
    Replicator,
    Roster,
    SetStatus,
    add_backup,
    remove_backup,
    set_status,
    verify_backups,
)

from ..failure import USAGE, Failure
from ..input.params import DURATION, ParamType
from ..show.members import (
    CopyProgress,
    is_read_only,
    lag_text,
    print_members,
    report_fields,
    roster_of,
    rules_of,
    set_roster_of,
    state_of,
    trouble_of,
    work_text,
)
from ..show.output import Output
from ..show.text import count, safe, size
from ..signals import interruptible
from ..times import US_PER_S
from ..verb import common, examples, verb


class _Which(ParamType):
    """A backup of the wheel: its directory, or the start of its id."""

    name = "backup"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        with contextlib.suppress(FilewheelError, OSError):
            roster = roster_of(ctx.ensure_object(Output))
            names = [name for m in roster.members for name in (m.path, m.wheel)] if roster else []
            return [CompletionItem(name) for name in names if name.startswith(incomplete)]
        return []


@click.group(
    "backup",
    invoke_without_command=True,
    subcommand_metavar="add | list | verify | remove ...",
    epilog=examples(
        """
        $ filewheel backup add /mnt/disk2/jobs.wheel --mirror
        $ filewheel backup add /mnt/disk3/jobs.wheel --ship
        $ filewheel backup list || echo "a backup needs a look"
        """
    ),
)
@common()
@click.pass_context
def command(ctx: click.Context) -> None:
    """Hold the same messages on other disks.

    A backup is a wheel that nothing fires from until `filewheel promote` makes it the primary. Producers and keepers
    that run already follow what is changed here. The service `filewheel replicate` has to run as long as there are
    backups: it brings them up to date, keeps them so, and removes what has fired.
    """
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help(), err=True)
        ctx.exit(USAGE)


# -- add ------------------------------------------------------------------------------------------------------


@verb(
    "add",
    """
    $ filewheel backup add /mnt/disk2/jobs.wheel --mirror
    $ filewheel backup add /mnt/disk3/jobs.wheel --ship --no-copy
    $ filewheel backup add s3://bucket/jobs --keep 7d
    """,
)
@click.option(
    "--mirror/--ship", "mirror", default=None,
    help="Producers write to it before an enqueue returns, or the replicator does a moment later.  [default: ship]",
)  # fmt: skip
@click.option(
    "--on-failure", type=click.Choice(["refuse", "stale"]),
    help="When a mirror fails: refuse to enqueue, or go on without it.  [default: refuse]",
)  # fmt: skip
@click.option(
    "--copies", type=click.IntRange(0, 16), metavar="N",
    help="How many wheels hold a message before its enqueue returns; 0: the primary and all mirrors.  [default: 0]",
)  # fmt: skip
@click.option(
    "--timeout", type=DURATION, metavar="DUR",
    help=f"How long an enqueue waits for a mirror until that counts as failed.  [default: {Roster.timeout_s:g}s]",
)  # fmt: skip
@click.option(
    "--keep", type=DURATION, metavar="DUR",
    help="In a bucket: for how long `restore --at` can go back.  [default: 0]",
)  # fmt: skip
@click.option("--take-over", is_flag=True, help="The wheel that wrote to this bucket is over: fence it.")
@click.option("--no-copy", is_flag=True, help="Leave the first copy to `filewheel replicate`.")
@click.argument("path", metavar="DIR", type=click.Path(file_okay=False))
def add(
    out: Output,
    mirror: bool | None,
    on_failure: Literal["refuse", "stale"] | None,
    copies: int | None,
    timeout: int | None,
    keep: int | None,
    take_over: bool,
    no_copy: bool,
    path: str,
) -> None:
    """Add a backup, and copy to it what is pending.

    DIR is made if it is not there. It may be a bucket: s3://bucket/prefix, gs://, az://, file:// (the extra `objects`).
    Then --keep is for how long it keeps what is older, and --take-over says that the wheel which wrote there is over:
    that one stops when it meets this one. --on-failure, --copies and --timeout hold for the whole set, and stay as they
    are where they are not given. The first copy can be interrupted: `filewheel replicate` goes on with it.

    For a DIR that is a backup already only what the options say changes, also while its disk is away.
    """
    before = roster_of(out)
    member = add_backup(
        out.dir, path, mode=_mode(before, mirror, path), on_failure=on_failure, copies=copies,
        timeout_s=None if timeout is None else timeout / US_PER_S,
        keep_s=None if keep is None else keep / US_PER_S, take_over=take_over, force=out.force,
    )  # fmt: skip
    status = set_status(out.dir)
    seen = None if status is None else next((one for one in status.members if one.member.wheel == member.wheel), None)
    change = _change(before, None if status is None else status.roster, member)
    is_away = seen is not None and not seen.reachable
    if change.is_new:
        _tell_of_one_disk(out, member)
    is_done = is_away or (not change.is_new and member.state == "current")
    report = None if no_copy or is_done else _copy(out, member, status)
    if out.wants_json:
        fields = {"path": member.path, "wheel": member.wheel, "mode": member.mode, "changed": change.is_any}
        out.record(fields | {"copied": report_fields(report) if report else None})
    else:
        done = work_text(report, nothing="") if report else ""
        out.write(f"{safe(member.path)} is {_KIND[member.mode]} of this wheel {change.text}" + (done and f"; {done}"))
    if report is not None and report.error:
        raise Failure(
            "partly", f"{member.path} is a backup now, and its first copy is not complete: {report.error}",
            hint=f"`filewheel -C {quote(out.dir)} replicate` goes on with it",
        )  # fmt: skip
    if seen is not None and is_away:
        out.warn(f"{member.path} cannot be read now ({seen.why}); it gets the change when its disk is back")
    if change.is_any and status is not None:
        for line in rules_of(status.roster):
            out.note(line)
    if not _is_followed(status):
        out.note(f"The service `filewheel -C {quote(out.dir)} replicate` keeps the backups in step. Start it")


_KIND = {"mirror": "a mirror", "ship": "a shipped backup"}


class _Change(NamedTuple):
    """What `backup add` changed."""

    is_new: bool
    """The directory is a backup now, or one in another mode."""
    rules: bool
    """Other rules hold for the set."""

    @property
    def is_any(self) -> bool:
        return self.is_new or self.rules

    @property
    def text(self) -> str:
        if self.is_new:
            return "now"
        return "already; the rules of the set have changed" if self.rules else "already; nothing changed"


def _change(before: Roster | None, after: Roster | None, member: Member) -> _Change:
    was = None if before is None else before.member(member.wheel)
    is_new = was is None or (was.mode, was.path) != (member.mode, member.path)
    return _Change(is_new, before is not None and after is not None and _rules(before) != _rules(after))


def _rules(roster: Roster) -> tuple[object, ...]:
    return roster.on_failure, roster.copies, roster.timeout_s, roster.epoch, [m.keep_us for m in roster.members]


def _mode(roster: Roster | None, mirror: bool | None, path: str) -> Literal["mirror", "ship"]:
    """Return the requested mode, or else the backup's present one."""
    if mirror is None:
        known = roster.member_at(path if "://" in path else os.path.abspath(path)) if roster is not None else None
        return known.mode if known is not None else "ship"
    return "mirror" if mirror else "ship"


def _tell_of_one_disk(out: Output, member: Member) -> None:
    with contextlib.suppress(OSError):
        if os.stat(out.dir).st_dev == os.stat(member.path).st_dev:
            out.warn("the backup is on the file system of the primary: the loss of that disk takes both")


def _is_followed(status: SetStatus | None) -> bool:
    """Return whether a replicator runs for this set: it follows at least one backup."""
    return status is not None and any(one.following for one in status.members)


def _copy(out: Output, member: Member, status: SetStatus | None) -> LinkReport | None:
    """Make the first copy, unless a running replicator makes it."""
    if _is_followed(status):
        out.note("A replicator is running, and makes the first copy")
        return None
    with interruptible(), Replicator(out.dir) as replicator, out.progress("copying") as progress:
        reports = replicator.once(CopyProgress(progress))
    return next((report for report in reports if report.wheel == member.wheel), None)


# -- list -----------------------------------------------------------------------------------------------------


@verb(
    "list",
    """
    $ filewheel backup list
    $ filewheel backup list --json || echo "a backup needs a look"
    """,
)
def show(out: Output) -> None:
    """List the backups: their state, how far they are behind, and whether a replicator follows.

    Exits with 0 when all of them are in order, and with 3 when one is not current (joining, stale), cannot be
    reached, has no replicator, or has not been compared since it was away. It also exits with 3 when the primary cannot
    be read, and names the backups that may be promoted. A wheel that stands alone has no backups, which is in order.
    """
    own, status = set_roster_of(out), set_status(out.dir)
    if own is None or status is None:
        out.note("This wheel stands alone: `filewheel backup add DIR` gives it a backup")
        return
    print_members(out, status)
    out.flush()
    if own.role != "primary":
        out.note(f"{out.dir} is {_ROLE[own.role]}")
    if not status.successor:
        out.note(f"The primary is {status.primary}, epoch {status.roster.epoch}")
    for line in rules_of(status.roster):
        out.note(line)
    troubled = [(one, trouble) for one in status.members if (trouble := trouble_of(one))]
    if status.primary_why:
        _fail_without_primary(out, own, status)
    for one, trouble in troubled:
        out.warn(f"{one.member.path}: {trouble}")
    if troubled:
        needs = "needs" if len(troubled) == 1 else "need"
        primary = out.dir if own.role == "primary" else status.primary
        raise Failure(
            "partly", f"{count(len(troubled), 'backup')} of {len(status.members)} {needs} a look",
            hint="; ".join(_ways([one for one, _ in troubled], primary)),
        )  # fmt: skip


_ROLE = {
    "backup": "a backup",
    "fenced": "fenced: another wheel was promoted",
    "promoting": "a backup whose promotion has started and not ended",
}


def _ways(troubled: list[MemberStatus], primary: str) -> list[str]:
    """Return the commands that bring troubled backups in order."""
    ways, waits, replicates = [], False, False
    for one in troubled:
        path = quote(one.member.path)
        # A former primary must rejoin first: a replicator skips it.
        back = f"`filewheel -C {path} rejoin`" if one.member.state == "fenced" else ""
        if one.is_broken and not back:
            ways.append(one.member.copied_anew(primary))
        elif one.member.is_far and not one.reachable:
            ways.append(
                f"`filewheel -C {quote(primary)} replicate --once` tries it now, and says what to do; if it is lost, "
                f"`filewheel -C {quote(primary)} backup remove {path}`"
            )
        elif not one.reachable:
            then = f", then {back}" if back else ""
            ways.append(
                f"mount the disk of {one.member.path}{then}; if it is lost, "
                f"`filewheel -C {quote(primary)} backup remove {path}`"
            )
        elif back:
            ways.append(back)
        elif is_read_only(one):
            ways.append(f"make {one.member.path} writable, or mount it so")
        elif one.following and not one.lacks:
            waits = True
        else:
            replicates = True
    if replicates:
        ways.append(f"`filewheel -C {quote(primary)} replicate`")
    elif waits and not ways:
        ways.append("wait, a replicator is at work on it")
    return ways


def _fail_without_primary(out: Output, own: Roster, status: SetStatus) -> NoReturn:
    """Raise a Failure that asks for the primary's disk or a promotion."""
    for one in status.members:
        if state_of(one) != "current":
            out.warn(f"{one.member.path}: {trouble_of(one)}")
    cannot = f"the primary {status.primary} cannot be asked: {status.primary_why}"
    if own.held < own.epoch or own.role == "promoting":
        raise Failure(
            "partly", f"this set has no primary: a promotion to epoch {own.epoch} has started and not ended",
            hint=f"wait a moment; if it was cut short, `filewheel -C {quote(out.dir)} promote`",
        )  # fmt: skip
    if own.role == "fenced" and "://" in own.primary:
        raise Failure(
            "partly", f"another wheel has taken over {own.primary}",
            hint=f"use that one; if this one is to fire: `filewheel -C {quote(out.dir)} backup add --take-over "
            f"{quote(own.primary)}`",
        )  # fmt: skip
    if status.successor:
        there = f"filewheel -C {quote(status.successor)}"
        raise Failure(
            "partly", cannot,
            hint=f"look there: `{there} backup list`; the service `{there} replicate` brings this wheel in step",
        )  # fmt: skip
    known = {one.member.wheel for one in status.members if state_of(one) == "current"}
    current = [m for m in status.roster.promotable() if m.wheel in known]
    if not current:
        raise Failure("partly", f"{cannot}; no backup is current", hint="mount its disk")
    names = ", ".join(f"{m.path} ({'mirror' if m.mode == 'mirror' else 'shipped'})" for m in current)
    raise Failure(
        "partly", f"{cannot}; current: {names}",
        hint=f"mount its disk; if it is lost, promote a backup: `filewheel -C {quote(current[0].path)} promote`",
    )  # fmt: skip


# -- verify ---------------------------------------------------------------------------------------------------


@verb(
    "verify",
    """
    $ filewheel backup verify
    $ filewheel backup verify --json
    """,
)
def compare(out: Output) -> None:
    """Compare each backup with the primary, byte for byte. Takes no lock and changes nothing; all may be running.

    Says of each backup whether it is in step, how far it is behind, or which files differ, and where. Exits with 12
    when a file differs, with 3 when a backup could not be compared, and with 0 when each one is in step or behind.
    """
    own, status = set_roster_of(out), set_status(out.dir)
    if own is None or status is None:
        out.note("This wheel stands alone: `filewheel backup add DIR` gives it a backup")
        return
    if status.primary_why:
        _fail_without_primary(out, own, status)
    with out.progress("comparing") as progress:

        def on_progress(done: int, total: int) -> None:
            progress.total = total
            progress.at(done)

        checks = verify_backups(out.dir, progress=on_progress)
    for one in checks:
        _print_check(out, one)
    out.flush()
    differ = [one for one in checks if one.state == "differs"]
    unknown = [one for one in checks if one.state == "unknown"]
    for one in [*unknown, *(one for one in differ if one.status.is_broken)]:
        out.warn(f"{one.status.member.path}: {_why_unknown(one)}")
    ways = [way for one in differ for way in _ways_to_mend(one, status.primary)]
    ways += _ways([one.status for one in unknown if not one.status.member.is_far], status.primary)
    if differ or unknown:
        what = f"{count(len(differ), 'backup differs', 'backups differ')} from the primary"
        if not differ:
            what = f"{count(len(unknown), 'backup')} of {len(checks)} cannot be called a copy"
        raise Failure("damaged" if differ else "partly", what, hint="; ".join(dict.fromkeys(ways)) or None)
    out.note(f"{count(len(checks), 'backup')} compared: no byte differs")


def _why_unknown(one: BackupCheck) -> str:
    return one.why or one.status.why or f"{one.status.member.state}: its copy is not complete"


def _print_check(out: Output, one: BackupCheck) -> None:
    """Print the result of one backup."""
    member = one.status.member
    if out.wants_json:
        found = [{"name": m.name, "offset": m.offset, "damaged": m.damaged, "what": m.what} for m in one.mismatches]
        out.record(
            {
                "path": member.path,
                "wheel": member.wheel,
                "state": one.state,
                "compared_bytes": one.compared_bytes,
                "lag_bytes": one.status.lag_bytes,
                "lag_s": one.status.lag_s,
                "mismatches": found,
                "why": _why_unknown(one) if one.why or one.state == "unknown" else "",
            }
        )
        return
    lag = f"{lag_text(one.status)} ({size(one.status.lag_bytes or 0)})" if one.state == "behind" else one.state
    out.write(f"{out.style(safe(member.path), bold=True)}: {lag}; {size(one.compared_bytes)} compared")
    for m in one.mismatches:
        side = {"primary": "in the primary", "backup": "in the backup", "both": "", "neither": ""}[m.damaged]
        out.write(f"  {safe(m.name)} at offset {m.offset:,}")
        out.block(f"{m.what} {side}".rstrip(), indent=4)


def _ways_to_mend(one: BackupCheck, primary: str) -> list[str]:
    """Return the commands for a backup that differs."""
    path = quote(one.status.member.path)
    damaged = {m.damaged for m in one.mismatches} or {"backup"}
    if one.mismatches and one.status.lacks == len(one.mismatches):
        return [f"`filewheel -C {quote(primary)} replicate` copies what is missing again"]
    if "neither" in damaged:
        return [f"`filewheel -C {path} promote`, which may have more, and `filewheel -C {quote(primary)} rejoin`"]
    ways = []
    if damaged != {"backup"}:
        ways.append(f"`filewheel -C {quote(primary)} verify`: the primary is damaged, leave the replicator running")
    if damaged != {"primary"}:
        ways.append(one.status.member.copied_anew(primary))
    return ways


# -- remove ---------------------------------------------------------------------------------------------------


@verb(
    "remove",
    """
    $ filewheel backup add /mnt/disk2/jobs.wheel
    $ filewheel backup remove /mnt/disk2/jobs.wheel
    """,
)
@click.argument("which", metavar="DIR|ID", type=_Which())
def remove(out: Output, which: str) -> None:
    """Take a backup out of the set. Its directory stays, as a wheel that stands alone.

    It still holds the messages. A keeper that is started on it fires them a second time, so delete the directory when
    you no longer need it.
    """
    member = remove_backup(out.dir, which)
    if out.wants_json:
        out.record({"path": member.path, "wheel": member.wheel, "mode": member.mode, "removed": True})
    else:
        out.write(f"{safe(member.path)} is no backup of this wheel any more")
    if not member.is_wheel:
        out.note("Its objects stay; a restore of them is a wheel that fires")
    elif member.is_far:
        out.note(
            "Over there it is a wheel of its own now, or still a backup if it cannot be reached; delete it in time"
        )
    elif os.path.isdir(member.path):
        out.note("It holds its messages still, and fires them if it is run; delete the directory in time")
    else:
        out.note("Its directory cannot be read now. When its disk is back, it fires nothing; delete it then")


for _command in (add, show, compare, remove):
    command.add_command(_command)
