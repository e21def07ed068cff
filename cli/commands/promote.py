"""`promote`: make a backup the primary, by hand, or as a standby when the primary is lost."""

from __future__ import annotations

from shlex import quote
from typing import Any

import click

from filewheel import Promotion, SetStatus, Standby, promote
from filewheel.tools.refusals import check_promote

from ..failure import INTERRUPTED, Failure
from ..firing import leave_at_once
from ..input.params import DURATION
from ..show.members import find_set, set_roster_of
from ..show.output import Output
from ..show.pauses import all_fields
from ..show.text import safe
from ..signals import Abort, Quit, Stop
from ..times import US_PER_S
from ..verb import verb

_AFTER_S = 5.0


@verb(
    "promote",
    """
    $ filewheel backup add /mnt/disk2/jobs.wheel
    $ filewheel -C /mnt/disk2/jobs.wheel promote --yes
    $ filewheel -C /mnt/disk2/jobs.wheel run --once
    """,
    own=("force",),
)
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option(
    "--force", is_flag=True, help="Promote it although it is known to lack messages, or has unreadable files of keys."
)
@click.option(
    "--wait", "wait_us", type=DURATION, default="5s", show_default=True, metavar="DUR",
    help="How long to wait for the old primary's keeper to stop.",
)  # fmt: skip
@click.option(
    "--auto", is_flag=True, help="Stand by, and promote it when the primary's wheel is gone or its disk fails."
)
@click.option(
    "--after", "after_us", type=DURATION, metavar="DUR",
    help=f"With --auto: how long the primary has to be gone.  [default: {_AFTER_S:g}s]",
)  # fmt: skip
def command(out: Output, yes: bool, force: bool, wait_us: int, auto: bool, after_us: int | None) -> None:
    """Make the backup that -C names the primary of its set.

    Every wheel that can be reached is fenced first: the old primary fires nothing more, and starts again only after
    `filewheel rejoin`. Then the backup is brought up to date, as far as possible, and may fire: `filewheel run` there.
    Messages that the old primary had in hand fire again. An unreachable wheel is named: make sure that nothing fires
    from it.

    --auto waits until the primary is lost, promotes and exits with 0, so that `promote --auto && filewheel run` is a
    standby. It exits with 130 when a signal stops it before.
    """
    if auto and force:
        raise click.UsageError(
            "--auto and --force exclude each other: whether to go without messages, a person decides"
        )
    if after_us is not None and not auto:
        raise click.UsageError("--after goes with --auto")
    if auto:
        result = _stand_by(out, _AFTER_S if after_us is None else after_us / US_PER_S)
    else:
        set_roster_of(out)  # fails first, so that a missing directory is reported once
        check_promote(out.dir, force=force)
        status = find_set(out)
        # It is the primary already: no other wheel is fenced.
        is_primary = status is not None and status.roster.role == "primary"
        if not is_primary and not out.ask(_question(out, status), yes=yes):
            raise Failure("failed", "nothing was promoted")
        result = promote(out.dir, force=force, wait_s=wait_us / US_PER_S)
    print_promotion(out, result)


def _question(out: Output, status: SetStatus | None) -> str:
    if status is None:
        return f"Make {out.dir} the primary?"
    return f"Make {out.dir} the primary, and fence {status.primary} (epoch {status.roster.epoch})?"


def _stand_by(out: Output, after_s: float) -> Promotion:
    with Stop() as stop:
        try:
            standby = Standby(out.dir, after_s=after_s)
            stop.wakes(standby.stop)
            out.note(f"standing by to promote {out.dir} when its primary is lost for {after_s:g} s")
            result = standby.run(out.note)
        except Quit:
            result = None
        except Abort:
            leave_at_once(INTERRUPTED)
    if result is None:
        raise Failure("interrupted", "stopped; nothing was promoted")
    return result


def promotion_fields(result: Promotion) -> dict[str, Any]:
    """Return a promotion's JSON fields."""
    return {
        "epoch": result.epoch,
        "old_primary": result.old_primary,
        "fenced": result.fenced,
        "unreachable": result.unreachable,
        "caught_up": result.caught_up,
        "paused": all_fields(result.paused),
        "notes": result.notes,
    }


def _how_far(result: Promotion) -> str:
    if result.caught_up:
        return "yes, it has everything"
    if result.was_mirror:
        return f"it has all that was confirmed, unless {safe(result.old_primary)} had marked it stale"
    return "not known"


def print_promotion(out: Output, result: Promotion) -> None:
    """Print the fenced and the unreachable wheels, and whether the new primary was up to date."""
    old = result.old_primary
    if out.wants_json:
        out.record(promotion_fields(result))
    else:
        rows = [
            ("primary", safe(out.dir)),
            ("epoch", str(result.epoch)),
            ("before", safe(old)),
            ("fenced", ", ".join(map(safe, result.fenced)) or "none"),
            ("unreachable", ", ".join(map(safe, result.unreachable)) or "none"),
            ("up to date", _how_far(result)),
        ]
        for name, value in rows:
            out.write(f"{out.style(name.ljust(13), bold=True)}{value}")
    out.flush()
    for text in result.notes:
        path = next((path for path in result.unreachable if text.startswith(f"{path} cannot be reached: ")), None)
        if path is None:
            out.note(text)
        else:
            out.warn(f"{text}; make sure that nothing fires from it")
    if not result.caught_up:
        rejoin = f"`filewheel -C {quote(old)} rejoin`"
        when = f"when {old} is back, {rejoin}" if old in result.unreachable else rejoin
        out.warn(f"messages that only {old} holds are not here: {when} brings them, and says how many there were")
    out.note(f"Messages fire from {out.dir} now: start its keeper or its scheduler there")
