"""`repair`: repair a damaged wheel, after a report of the steps and losses."""

from __future__ import annotations

import click

from filewheel.tools.refusals import check_repair
from filewheel.tools.repair import repair as repair_directory
from filewheel.tools.verify import Finding

from ..failure import Failure
from ..show.output import Output
from ..show.text import count, size
from ..verb import verb
from .verify import finding_fields, print_findings, print_twice, read_all


@verb(
    "repair",
    """
    $ filewheel repair --dry-run
    $ filewheel repair --yes
    """,
)
@click.option("--dry-run", is_flag=True, help="Say what would be done and change nothing.")
@click.option("--yes", is_flag=True, help="Do not ask.")
def command(out: Output, dry_run: bool, yes: bool) -> None:
    """Repair the wheel. The keeper must be stopped.

    No readable data is lost. Unreadable bytes are copied to quarantine/ before any change. The messages of a missing
    file are lost: restore it first if you can. A second repair changes nothing. A dry run of a damaged wheel ends
    with exit code 12, as `verify` does.
    """
    directory = out.directory(write=not dry_run)
    before = read_all(out, directory)
    damage = before.damage
    if not damage:
        print_twice(out, before)
        if out.wants_json:
            out.record({"found": [], "done": [], "bytes_kept": 0, "bytes_aside": 0, "bytes_lost": 0})
        out.note("nothing to repair: no damage")
        return
    if dry_run or not out.wants_json:
        print_findings(out, damage)
    for line in _plan(damage):
        out.note(line)
    if dry_run:
        raise Failure("damaged", "the wheel is damaged; this dry run changed nothing", hint=_hint(damage))
    check_repair(directory, damage)
    if not out.ask("Repair it?", yes=yes):
        raise Failure("failed", "nothing was repaired")
    result = repair_directory(directory)
    after = read_all(out, out.directory())
    left = after.damage
    print_twice(out, after)
    if out.wants_json:
        out.record(
            {
                "found": [finding_fields(f) for f in result.found],
                "done": result.done,
                "bytes_kept": result.bytes_kept,
                "bytes_aside": result.bytes_aside,
                "bytes_lost": result.bytes_lost,
            }
        )
    else:
        for line in result.done:
            out.write(line)
    lost = f"; {size(result.bytes_lost)} given up with files that are missing" if result.bytes_lost else ""
    out.note(f"kept {size(result.bytes_kept)}; {size(result.bytes_aside)} put aside in {out.dir}/quarantine{lost}")
    if result.bytes_aside:
        out.note("Messages in what was put aside do not fire any more; a .json beside each piece has the reason")
    if left:
        roster = next((f.hint for f in left if f.name == "roster.json"), None)
        raise Failure(
            "damaged", f"{count(len(left), 'place is', 'places are')} still damaged",
            hint=roster or "restore what `filewheel verify` names from a backup",
        )  # fmt: skip
    out.note("verified: no damage")


def _plan(damage: list[Finding]) -> list[str]:
    """Return the plan of the repair, a line for each kind of damage."""
    files = len({f.name for f in damage})
    missing = sum(f.is_missing for f in damage)
    unreadable = sum(f.end - f.offset for f in damage if not f.is_missing)
    lines = [f"{count(len(damage), 'place is', 'places are')} damaged in {count(files, 'file')}"]
    if missing:
        lines.append(f"{count(missing, 'file is', 'files are')} missing, and a repair accepts that loss")
    if unreadable:
        lines.append(f"{size(unreadable)} cannot be read; they go to quarantine/, the rest is kept")
    return lines if missing or unreadable else [f"{lines[0]}: nothing is lost"]


def _hint(damage: list[Finding]) -> str:
    if any(f.is_missing for f in damage):
        return "restore what is missing first; `filewheel repair` gives up the rest"
    return "`filewheel repair` repairs it"
