"""The command line on damaged wheels on a real file system: documented exit codes, and never a traceback.

A sample of what flip.py does in memory. Invariant: whatever is wrong with the bytes, a verb ends with one of the codes
of docs/cli.md, and says why in words.
"""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

from tests.crash.campaign import Tally
from tests.crash.population import Population

REPO = Path(__file__).parents[2]
VERBS: list[tuple[list[str], set[int]]] = [
    (["verify"], {0, 12}),
    (["inspect"], {0, 12}),
    (["inspect", "list"], {0, 3, 12}),
    (["stats"], {0, 12}),
    (["run", "--once"], {0, 3, 12}),
    (["repair", "--yes"], {0, 12}),
    (["verify"], {0, 12}),
]
SECONDS_MAX = 20


def play_commands(
    number: int, tally: Tally, population: Population, cases: Iterable[tuple[str, str, Callable[[], dict[str, bytes]]]]
) -> None:
    """Write one damaged wheel to a disk, and run two verbs on it."""
    rng = random.Random(f"commands {number}")
    _, how, change = rng.choice(list(cases))
    at = rng.randrange(len(VERBS) - 1)
    path = tempfile.mkdtemp(prefix="filewheel-flip-")
    try:
        population.image.write_to(path, change())
        for verb, codes in VERBS[at : at + 2]:
            tally.count("commands")
            run = subprocess.run(
                [sys.executable, "-m", "cli", "-C", path, *verb],
                cwd=REPO,
                capture_output=True,
                timeout=SECONDS_MAX,
                check=False,
            )
            if run.returncode not in codes or b"Traceback" in run.stderr:
                tally.violation(f"{how}: {' '.join(verb)} ended with {run.returncode}: {run.stderr[-2000:].decode()}")
    finally:
        shutil.rmtree(path)
