"""`doctor`: what an issue should say about an installation and a wheel, in one text to paste."""

from __future__ import annotations

from typing import Any

import click

from ..bench.verdict import DISKS, disk_of, duration
from ..doctor.flushes import measure_flushes
from ..doctor.place import hidden, place_of
from ..doctor.state import DoctorState
from ..doctor.versions import NOT_COMPILED, versions
from ..failure import Failure
from ..show.output import Output
from ..show.text import count, safe, size, wrap
from ..signals import interruptible
from ..verb import verb

_LABEL = 11


@verb(
    "doctor",
    """
    $ filewheel doctor
    $ filewheel doctor --no-measure --verify
    $ filewheel doctor --json > /tmp/doctor.json
    """,
)
@click.option(
    "--measure/--no-measure", default=True, help="Measure what a flush costs, beside the wheel.  [default: yes]"
)
@click.option("--verify", is_flag=True, help="Read every byte of the wheel, too.")
def command(out: Output, measure: bool, verify: bool) -> None:
    """Describe this installation and the wheel, to paste into an issue.

    Versions, the file system and its mount options, the cost of a flush, the counts of the wheel, its health and its
    damage. It has no payloads, headers, topics, keys, or names of schedules and pauses; paths have ~ for your home.

    It changes nothing in the wheel and takes no lock. It works if the wheel is damaged, missing or not readable, or on
    a read-only disk, and beside a keeper. The cost of a flush is measured with a temporary file beside the wheel,
    which is removed.

    \b
    Exit codes; the report is printed in any case:
    0   all was read, and what was read is not damaged
    10  there is no wheel
    12  it is damaged (--verify reads every byte)
    13  a newer filewheel wrote it
    1   a part cannot be read

    Whether messages fire in time is in the report, and is no failure here: `filewheel health` judges that.
    """
    report: dict[str, Any] = {"versions": versions(), "place": place_of(out.dir)}
    with interruptible():
        report["flushes"] = measure_flushes(out.dir) if measure else None
        state = DoctorState(out.dir, verify=verify)
    report |= state.fields
    if out.wants_json:
        out.record(report)
    else:
        _print(out, report)
    out.flush()
    if state.failures:
        worst = state.failures[0]
        raise Failure(worst.kind, hidden(worst.message), hint=worst.hint)


def _print(out: Output, report: dict[str, Any]) -> None:
    for label, texts in (
        ("software", _software(report["versions"])),
        ("place", _place(report["place"])),
        ("flushes", _flushes(report["flushes"], report["place"])),
        ("wheel", _wheel(report)),
        ("health", _health(report["health"])),
        ("damage", _damage(report["verify"])),
        ("troubles", [f"{one['error']}: {one['message']}" for one in report["troubles"]] or ["none"]),
    ):
        for number, text in enumerate(texts):
            for line in wrap(safe(text), out.columns - _LABEL):
                out.write(f"{label if not number else '':{_LABEL}}{line}".rstrip())
                label = ""


_COMPILE = (
    "loops in C are several times faster: install gcc and Python's headers, then "
    "`pip install --force-reinstall --no-cache-dir filewheel`"
)


def _software(found: dict[str, Any]) -> list[str]:
    gil = "" if found["gil"] else ", without GIL"
    return [
        f"filewheel {found['filewheel']}, loops in {found['loops']}; {found['python']}{gil}",
        f"{found['system']}; {found['libc'] or 'libc not known'}; {count(found['cores'], 'core')}; "
        f"at most {count(found['open_files_max'], 'open file')}",
        ", ".join(f"{name} {version or 'of no known version'}" for name, version in found["libraries"].items()),
        *([_COMPILE] if found["loops"] == NOT_COMPILED else []),
    ]  # fmt: skip


def _place(found: dict[str, Any]) -> list[str]:
    there = {None: "not known whether it is there", False: "not there"}.get(found["exists"])
    if there is None:
        there = f"mode {found['mode']}, {'yours' if found['yours'] else 'of another user'}"
    kind = found["file_system"] or "file system not known"
    if found["network"]:
        kind += ": a network file system, which is refused without --force"
    free = "" if found["free_bytes"] is None else f"; {size(found['free_bytes'])} free"
    free += "" if found["free_files"] is None else f", {found['free_files']:,} files"
    point = "; the wheel is a mount point" if found["mount_point"] else ""
    return [
        f"{found['path']}: {there}",
        f"{kind}{free}{point}",
        ", ".join(found["mount_options"] or []) or "no mount table",
    ]


def _flushes(found: dict[str, Any] | None, place: dict[str, Any]) -> list[str]:
    if found is None:
        return ["not measured (--no-measure)"]
    if found["why"]:
        return [f"not measured: {found['why']}"]
    kind = disk_of(found["rewrite_us"], place["file_system"] or "")
    return [
        f"append {duration(found['append_us'])}, rewrite {duration(found['rewrite_us'])}, name "
        f"{duration(found['name_us'])}; slowest {duration(found['slowest_us'])} of {found['count']}",
        DISKS[kind],
    ]


def _wheel(report: dict[str, Any]) -> list[str]:
    known, stats, running, set_ = report["settings"], report["stats"], report["running"], report["set"]
    texts = []
    if known is not None:
        texts.append(
            f"format {known['format']}, sync {known['sync']}, laps of {known['lap_s']} s, payloads up to "
            f"{size(known['payload_bytes_max'])}, created {known['created']}"
        )
        texts += known["notes"]
    if stats is not None:
        texts.append(
            f"{stats['pending']:,} pending, {stats['dead']:,} dead, {stats['quarantined']:,} in quarantine; next due "
            f"{stats['next_due'] or '-'}"
        )
        texts.append(
            f"{size(stats['journal_bytes'])} in {count(stats['journal_files'], 'journal')}, "
            f"{size(stats['file_bytes'])} in {count(stats['slot_files'], 'slot file')} and "
            f"{count(stats['lap_files'], 'lap file')}; {count(stats['damaged'], 'damaged place')} among what was read; "
            + ("pauses not readable" if stats["pauses"] is None else count(stats["pauses"], "pause"))
        )
    if running is not None:
        texts.append(f"{running['claimed']:,} claimed, {running['begun']:,} begun")
    if set_ is not None:
        backups = ", ".join(f"{number} ({state})" for state, number in set_["backups"].items()) or "none"
        texts.append(f"{set_['role']} of a set, epoch {set_['epoch']}; backups: {backups}")
    return texts or ["cannot be read"]


def _health(checks: list[dict[str, Any]] | None) -> list[str]:
    if checks is None:
        return ["cannot be checked"]
    return [f"{c['name']}: {c['kind'] or 'ok'}" + (f", {c['text']}" if c["text"] else "") for c in checks]


def _damage(found: dict[str, Any] | None) -> list[str]:
    if found is None:
        return ["not every byte was read (--verify does)"]
    texts = [f"{count(found['damage'], 'place')}, {count(found['notes'], 'note')}, in {size(found['bytes'])}"]
    return texts + [
        f"{p['file']} at {p['offset']:,}" + (f": {p['what']}" if p["what"] else "") for p in found["places"]
    ]
