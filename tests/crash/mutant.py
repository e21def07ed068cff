"""Campaign: every protection switched off, one at a time; each must be seen by the model or by a test.

A round is a mutant. What it falls to is known (mutants.py) and played in a process of its own. A mutant that survives
is a violation: either the test has gone blind, or the protection is not needed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.crash.campaign import Campaign, Tally
from tests.crash.mutants import MUTANTS, Mutant

REPO = Path(__file__).parents[2]
TIMEOUT_S = 120
SEARCHED = ("word ", "seed ", "race ", "play ", "set ", "saga ", "copy ")


def play(number: int, tally: Tally, rig: Any) -> None:
    """Switch one protection off, and see that it is seen."""
    mutant = MUTANTS[number % len(MUTANTS)]
    tally.count("mutants")
    killed, said = by_model(mutant, tally) if mutant.killer.startswith(SEARCHED) else by_test(mutant)
    if killed:
        tally.count("mutants killed")
    else:
        tally.violation(f"{mutant.name} survives {mutant.killer!r} ({mutant.what}):\n{said}")


def by_model(mutant: Mutant, tally: Tally) -> tuple[bool, str]:
    """Play the script, the race or the history that a mutant falls to; search anew when a change of code moved it."""
    done = run([sys.executable, "-m", "tests.crash.hunt", mutant.name, "--known"], {})
    if done.returncode == 1 and '"killer": null' in done.stdout:
        tally.count("killers searched anew")
        done = run([sys.executable, "-m", "tests.crash.hunt", mutant.name, "--seconds", "20"], {})
    try:
        return json.loads(done.stdout)["killer"] is not None, done.stderr
    except (ValueError, KeyError):
        return False, done.stdout + done.stderr


def by_test(mutant: Mutant) -> tuple[bool, str]:
    """Run the test that a mutant falls to; exit code 1 is pytest's for tests that failed."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "tests.crash.mutate", "-p", "no:cacheprovider"]
    done = run([*command, mutant.killer], {"FILEWHEEL_MUTANT": mutant.name})
    return done.returncode in (1, -9), done.stdout[-2000:] + done.stderr[-2000:]


def run(command: list[str], variables: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run a process to its end; one that hangs is killed, which counts as seen (-9)."""
    environ = os.environ | variables
    try:
        return subprocess.run(
            command, cwd=REPO, env=environ, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired as exc:
        return subprocess.CompletedProcess(command, -9, str(exc.stdout or ""), str(exc.stderr or ""))


def table() -> str:
    """Return the mutants as a table in Markdown."""
    rows = ["| rule | safeguard | detected by | after |", "| --- | --- | --- | --- |"]
    for m in MUTANTS:
        rows.append(
            f"| {m.rule} | {m.what} (`{m.name}`) | {seen_by(m.killer)} | {f'{m.states:,}' if m.states else ''} |"
        )
    return "\n".join(rows)


def seen_by(killer: str) -> str:
    """Say what a mutant falls to, for people."""
    from tests.model.exhaustive import describe

    kind, _, rest = killer.partition(" ")
    if kind == "word":
        return f"workload “{describe(int(rest))}”"
    if kind == "race":
        return f"race {rest}"
    if kind in ("set", "saga", "copy"):
        return f"{kind} {rest}"
    if kind == "seed":
        return f"history {rest}"
    if kind == "play":
        return f"schedule {rest}"
    return "test: " + killer.partition("::")[2].removeprefix("test_").replace("_", " ")


CAMPAIGN = Campaign(
    name="mutant",
    title="every protection switched off, one at a time",
    play=play,
    share=0.015,
    targets={"mutants killed": len(MUTANTS)},
    rounds=len(MUTANTS),
    short=1,
)
