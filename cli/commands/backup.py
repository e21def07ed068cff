"""`backup`: other wheels that hold the same messages, on other disks: added, listed, removed."""

from __future__ import annotations

import contextlib
import os

import click
from click.shell_completion import CompletionItem

from filewheel import FilewheelError
from filewheel.message import US_PER_S
from filewheel.replication.replicator import Replicator
from filewheel.replication.report import LinkReport
from filewheel.replication.sets import add_backup, remove_backup, set_status
from filewheel.roster.roster import RETAIN_BYTES, TIMEOUT_S, Member, Mode, OnFailure, Roster

from ..failure import Failure
from ..input.params import DURATION, SIZE, ParamType
from ..show.members import Copying, print_members, report_fields, roster_of, trouble_of, work_text
from ..show.output import Output
from ..show.text import count, safe, size
from ..signals import interruptible
from ..verb import common, examples, verb


class _Which(ParamType):
    """A backup of the wheel: its directory, or the beginning of its id."""

    name = "backup"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        with contextlib.suppress(FilewheelError, OSError):
            roster = roster_of(ctx.ensure_object(Output))
            names = [name for m in roster.members for name in (m.path, m.wheel)] if roster else []
            return [CompletionItem(name) for name in names if name.startswith(incomplete)]
        return []


@click.group(
    "backup",
    subcommand_metavar="add | list | remove ...",
    epilog=examples(
        """
        $ filewheel backup add /mnt/disk2/jobs.wheel --mirror
        $ filewheel backup add /mnt/disk3/jobs.wheel --ship
        $ filewheel backup list || echo "a backup needs a look"
        """
    ),
)
@common()
def command() -> None:
    """Hold the same messages on other disks.

    A backup is a wheel that nothing fires from until `filewheel promote` makes it the primary. Producers and keepers
    that run already honour what is changed here. `filewheel replicate` has to run as long as there are backups: it
    brings them up to date, keeps them so, and clears what has fired.
    """


# -- add ------------------------------------------------------------------------------------------------------


@verb(
    "add",
    """
    $ filewheel backup add /mnt/disk2/jobs.wheel --mirror
    $ filewheel backup add /mnt/disk3/jobs.wheel --ship --no-copy
    """,
)
@click.option(
    "--mirror/--ship", "mirror", default=None,
    help="Written before an enqueue returns, or a moment later by the replicator.  [default: ship]",
)  # fmt: skip
@click.option(
    "--on-failure", type=click.Choice(["refuse", "stale"]),
    help="When a mirror fails: refuse to enqueue, or go on without it.  [default: refuse]",
)  # fmt: skip
@click.option(
    "--copies", type=click.IntRange(0, 16), metavar="N",
    help="How many wheels hold an enqueue before it returns; 0 is the primary and all mirrors.  [default: 0]",
)  # fmt: skip
@click.option(
    "--timeout", type=DURATION, metavar="DUR",
    help=f"How long an enqueue waits for a mirror until that counts as failed.  [default: {TIMEOUT_S:g}s]",
)  # fmt: skip
@click.option(
    "--retain", type=SIZE, metavar="SIZE",
    help=f"How much journal the primary keeps for backups that are behind.  [default: {RETAIN_BYTES >> 20}MiB]",
)  # fmt: skip
@click.option("--no-copy", is_flag=True, help="Leave the first copy to `filewheel replicate`.")
@click.argument("path", metavar="DIR", type=click.Path(file_okay=False))
def add(
    out: Output,
    mirror: bool | None,
    on_failure: OnFailure | None,
    copies: int | None,
    timeout: int | None,
    retain: int | None,
    no_copy: bool,
    path: str,
) -> None:
    """Add a backup, and copy to it what is pending.

    DIR is made if it is not there. --on-failure, --copies, --timeout and --retain hold for the whole set, and stay as
    they are where they are not given. The first copy can be interrupted: `filewheel replicate` goes on with it.
    """
    member = add_backup(
        out.dir, path, mode=_mode(out, mirror, path), on_failure=on_failure, copies=copies,
        timeout_s=None if timeout is None else timeout / US_PER_S, retain_bytes=retain, force=out.force,
    )  # fmt: skip
    _tell_of_one_disk(out, member)
    report = None if no_copy else _copy(out, member)
    if out.wants_json:
        fields = {"path": member.path, "wheel": member.wheel, "mode": member.mode}
        out.record(fields | {"copied": report_fields(report) if report else None})
    else:
        how = "mirrored: producers write to it" if member.mode == "mirror" else "shipped: the replicator writes to it"
        out.write(f"{safe(member.path)} is a backup now, {how}" + (f"; {work_text(report)}" if report else ""))
    if report is not None and report.error:
        raise Failure(
            "partly", f"{member.path} is a backup, but the first copy is not done: {report.error}",
            hint="`filewheel replicate` goes on with it",
        )  # fmt: skip
    out.note("`filewheel replicate` keeps it in step; it has to run")


def _mode(out: Output, mirror: bool | None, path: str) -> Mode:
    """What was asked for; else what it is already."""
    if mirror is None:
        roster = roster_of(out)
        where = os.path.abspath(path)
        known = [m.mode for m in roster.members if m.path == where] if roster is not None else []
        return known[0] if known else "ship"
    return "mirror" if mirror else "ship"


def _tell_of_one_disk(out: Output, member: Member) -> None:
    with contextlib.suppress(OSError):
        if os.stat(out.dir).st_dev == os.stat(member.path).st_dev:
            out.warn("the backup is on the file system of the primary: the loss of that disk takes both")


def _copy(out: Output, member: Member) -> LinkReport | None:
    """Make the first copy, unless a replicator runs that does."""
    status = set_status(out.dir)
    if status is not None and any(one.following for one in status.members):
        out.note("a replicator is running, and makes the first copy")
        return None
    with interruptible(), Replicator(out.dir) as replicator, out.progress("copying") as progress:
        reports = replicator.once(Copying(progress))
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

    Exits with 0 when all of them are in order, and with 3 when one is not current (joining, matching, stale), cannot be
    reached, has no replicator, or has not been compared since it was away. A wheel that stands alone has none, which
    is in order.
    """
    own, status = roster_of(out), set_status(out.dir)
    if own is None or status is None:
        out.note("this wheel stands alone: `filewheel backup add DIR`")
        return
    print_members(out, status)
    out.flush()
    if own.role != "primary":
        out.note(f"{out.dir} is {'a backup' if own.role == 'backup' else own.role}")
    out.note(f"epoch {status.roster.epoch}, the primary is {status.primary}")
    out.note(_policy(status.roster))
    troubled = [(one, trouble) for one in status.members if (trouble := trouble_of(one))]
    for one, trouble in troubled:
        out.warn(f"{one.member.path} is {trouble}")
    if troubled:
        # One that was the primary has to rejoin first: a replicator passes it over.
        fenced = [one.member.path for one, _ in troubled if one.member.state == "fenced"]
        hints = [f"`filewheel -C {path} rejoin`" for path in fenced]
        if len(troubled) > len(fenced):
            hints.append(f"`filewheel -C {status.primary} replicate`")
        needs = "needs" if len(troubled) == 1 else "need"
        raise Failure(
            "partly", f"{count(len(troubled), 'backup')} of {len(status.members)} {needs} a look",
            hint=", ".join(hints),
        )  # fmt: skip


def _policy(roster: Roster) -> str:
    if not any(m.mode == "mirror" for m in roster.members):
        return f"journals wait for backups up to {size(roster.retain_bytes)}"
    held = f"{roster.copies} wheels hold" if roster.copies else "all mirrors hold"
    fails = "is refused" if roster.on_failure == "refuse" else "goes on without it"
    return f"{held} an enqueue before it returns; when a mirror fails, it {fails}"


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
    """Take a backup out of the set; its directory stays, as a wheel that stands alone.

    It still holds the messages: what fires from it from now on fires twice. Delete the directory, or keep it unused.
    """
    member = remove_backup(out.dir, which)
    if out.wants_json:
        out.record({"path": member.path, "wheel": member.wheel, "mode": member.mode, "removed": True})
    else:
        out.write(f"{safe(member.path)} is no backup any more; its directory is still there")


for _command in (add, show, remove):
    command.add_command(_command)
