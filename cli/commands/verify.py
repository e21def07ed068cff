"""`verify`: read every byte of the wheel and report each fault."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from filewheel.tools import Directory
from filewheel.tools.verify import Finding, Report
from filewheel.tools.verify import verify as verify_directory

from ..failure import Failure
from ..show.output import Output
from ..show.text import count, safe, size
from ..verb import verb


@verb(
    "verify",
    """
    $ filewheel verify
    $ filewheel verify --json
    """,
)
def command(out: Output) -> None:
    """Check the whole wheel. Takes no lock and changes nothing; a keeper may be running.

    Finds damage (bytes that had been durable cannot be read: exit code 12) and notes (harmless: left by a
    crash, or not a file of filewheel: exit code 0).
    """
    report = read_all(out, out.directory())
    print_findings(out, report.findings)
    notes = len(report.findings) - len(report.damage)
    read = f"{count(report.frames, 'frame')}, {size(report.bytes)} in {count(report.files, 'file')}"
    if report.damage:
        out.note(f"read {read}")
        repairs = "`filewheel repair --dry-run` lists the repairs"
        raise Failure(
            "damaged", f"{count(len(report.damage), 'place is', 'places are')} damaged",
            hint="`filewheel backup verify`" if report.has_copied_damage else repairs,
        )  # fmt: skip
    out.note(f"no damage in {read}" + (f"; {count(notes, 'note')}" if notes else ""))


def read_all(out: Output, directory: Directory) -> Report:
    """Verify a directory, with a progress line."""
    with out.progress("verifying") as progress:

        def on_progress(done: int, total: int) -> None:
            progress.total = total
            progress.at(done)

        return verify_directory(directory, progress=on_progress)


def print_twice(out: Output, report: Report) -> None:
    """Print the keys with two pending messages: a repair leaves them."""
    for finding in report.findings:
        if finding.name == "keys" and finding.kind == "note":
            out.warn(f"{safe(finding.what)}: {finding.hint}")


def print_findings(out: Output, findings: Sequence[Finding]) -> None:
    """Print the findings."""
    if out.wants_json:
        for finding in findings:
            out.record(finding_fields(finding))
    for finding in () if out.wants_json else findings:
        kind = out.style(finding.kind.ljust(6), "yellow", bold=finding.kind == "damage")
        out.write(f"{kind}  {safe(finding.name)} at offset {finding.offset:,}")
        out.block(finding.what + (f"; {finding.hint}" if finding.hint else ""), indent=8)
    out.flush()


def finding_fields(finding: Finding) -> dict[str, Any]:
    """Return a finding's JSON fields."""
    return {
        "kind": finding.kind,
        "file": finding.name,
        "offset": finding.offset,
        "end": finding.end,
        "what": finding.what,
        "hint": finding.hint,
    }
