"""`health`: whether a message that comes due now would fire in time, as an exit code."""

from __future__ import annotations

import click

from filewheel.live.health import MAX_LAG_S, MIN_FREE_BYTES, Check, Health, check_health

from ..failure import Failure
from ..input.params import DURATION, SIZE
from ..show.calls import who_fires
from ..show.output import Column, Output
from ..times import US_PER_S
from ..verb import verb


@verb(
    "health",
    """
    $ filewheel health --no-keeper
    $ filewheel health --max-lag 5m --max-dead 10 --no-keeper --json
    $ filewheel health -q --no-keeper && echo healthy
    """,
)
@click.option(
    "--max-lag", type=DURATION, default=f"{MAX_LAG_S:.0f}s", show_default=True, metavar="DUR",
    help="How long a due message may wait before it begins.",
)  # fmt: skip
@click.option(
    "--min-free", type=SIZE, default=f"{MIN_FREE_BYTES >> 20}M", show_default=True, metavar="SIZE",
    help="How much room its disk must have.",
)  # fmt: skip
@click.option("--keeper/--no-keeper", default=True, help="Whether a keeper must run; not where a timer fires.")
@click.option("--backups", is_flag=True, help="Each backup must be current and followed, too.")
@click.option(
    "--max-dead", type=click.IntRange(min=0), metavar="N", help="At most so many dead letters; without it any number."
)
def command(out: Output, max_lag: int, min_free: int, keeper: bool, backups: bool, max_dead: int | None) -> None:
    """Check whether a message that comes due now would fire in time.

    Takes no lock and changes nothing. It sees a keeper in another container, too, if both share the wheel's directory.
    A message that a handler or a command works on does not wait, however long that takes. What is paused is no failure,
    and is shown.

    \b
    Exit codes, the first that holds:
    0   healthy
    14  the wheel is a backup, or another one was promoted
    12  a file is missing or damaged (of those that were read)
    20  no keeper runs
    21  the keeper was stopped or hangs: it has not come around for
        --max-lag, or 15 seconds if that is longer
    22  the first due message has waited longer than --max-lag
    23  the disk has less room than --min-free
    24  a backup is not in step (with --backups)
    25  there are more dead letters than --max-dead
    10, 13, 1  there is no wheel, or it cannot be opened

    With -q only the reason of a failure is printed, to stderr. Piped, it prints one JSON object.
    """
    found = check_health(
        out.dir, max_lag_s=max_lag / US_PER_S, min_free_bytes=min_free, needs_keeper=keeper, backups=backups,
        max_dead=max_dead, force=out.force,
    )  # fmt: skip
    if out.json or not out.quiet:
        _show(out, found)
    if found.failed:
        worst = found.failed[0]
        raise Failure(worst.kind, worst.text, hint=_hint(out, worst))


def _show(out: Output, found: Health) -> None:
    if out.wants_json:
        out.record(found.fields())
        return
    rows = [(check.name, "ok" if check.is_ok else check.kind, check.text) for check in found.checks]
    out.table([Column("CHECK"), Column("STATE"), Column("", 200)], rows)


def _hint(out: Output, worst: Check) -> str | None:
    """Return the next command."""
    if worst.kind == "no-keeper":
        with out.wheel() as wheel:
            return f"start {who_fires(wheel)}"
    return {
        "damaged": "`filewheel verify` names each place",
        "stuck": "restart its service; under systemd WatchdogSec= does that",
        "late": "`filewheel inspect list` shows what waits",
        "nearly-full": "free some space, or move the wheel",
        "backups": "`filewheel backup list`",
        "dead": "`filewheel dead list` shows them; `dead revive` and `dead drop` end the alarm",
    }.get(worst.kind)
