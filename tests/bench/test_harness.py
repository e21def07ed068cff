"""The harness runs what is there, says what is not, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.bench.harness import Plan, end_group, run_child, run_plan
from tests.bench.place import place
from tests.bench.result import Run, load_run
from tests.bench.store import Missing, Session, Store
from tests.bench.stores import BY_KEY
from tests.bench.table import tables
from tests.bench.workloads import BY_NAME
from tests.support import REPO

NAMES = ("one", "fire", "cancel")
PEERS = ["bare", "filewheel", "sqlite"]


def plan(*names: str, peers: list[str] = PEERS, rounds: int = 1) -> Plan:
    """The smallest plan."""
    return Plan([BY_NAME[name] for name in names], peers, rounds, seconds=0.02, scale=0.001, seed=1)


def test_every_cell_of_a_small_run_has_figures(tmp_path: Path) -> None:
    run = Run({})
    told: list[str] = []
    run_plan(plan(*NAMES), "plain", tmp_path, run, told.append)
    assert not {key: cells.missing for key, cells in run.cells.items() if cells.missing}
    assert all(value > 0 for cells in run.cells.values() for m in cells.metrics.values() for value in m.values())
    assert {w for _, w, _ in run.cells} == set(NAMES)
    assert len(told) == len(run.cells)
    assert "filewheel" in tables(run)
    assert not list((tmp_path / "work").iterdir())  # each cell took its directory with it


def test_rounds_take_turns(tmp_path: Path) -> None:
    told: list[str] = []
    run = Run({})
    run_plan(plan("one", peers=["bare", "sqlite"], rounds=2), "plain", tmp_path, run, told.append)
    assert [line.split()[2] for line in told] == ["bare", "sqlite", "sqlite", "bare"]
    assert set(run.at("plain", "one", "sqlite").metrics["rate"]) == {0, 1}


def test_a_replay_fires_everything_and_nothing_that_was_cancelled(tmp_path: Path) -> None:
    run = Run({})
    run_plan(plan("replay", peers=["filewheel"]), "plain", tmp_path, run, lambda line: None)
    cells = run.at("plain", "replay", "filewheel")
    assert not cells.missing
    counts = {name: cells.median(name) for name in ("early", "missing", "fired after cancel")}
    assert counts == {"early": 0, "missing": 0, "fired after cancel": 0}
    assert (cells.median("fired") or 0) > 100


def test_a_server_that_is_not_installed_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    found = run_child(plan("one"), "one", "beanstalkd", tmp_path / "cell", 0)
    assert found == "beanstalkd is not installed"


@pytest.mark.parametrize(("kind", "lacks"), [(Store, "session"), (Session, "enqueue")])
def test_a_peer_that_lacks_what_every_peer_has_cannot_be_made(kind: type, lacks: str) -> None:
    peer = type("Peer", (kind,), {})
    with pytest.raises(TypeError, match=f"abstract method '?{lacks}"):
        peer()


def test_a_peer_that_only_enqueues_says_that_nothing_fires(tmp_path: Path) -> None:
    session = BY_KEY["bare"].store(tmp_path).session()
    for ask in (lambda: session.claim(1), lambda: session.ack([])):
        with pytest.raises(Missing, match="nothing fires"):
            ask()
    session.close()


def test_a_cell_that_fails_says_why_and_the_others_go_on(tmp_path: Path) -> None:
    run = Run({})
    (tmp_path / "work").mkdir()
    broken = plan("one", peers=["bare"])
    assert run_child(broken, "nothing", "bare", tmp_path / "cell", 0) == "failed: KeyError: 'nothing'"
    run.at("plain", "one", "sqlite").missing = "failed: it broke"  # as a round before left it
    run_plan(plan("one", peers=["bare", "sqlite"]), "plain", tmp_path, run, lambda line: None)
    assert run.at("plain", "one", "bare").metrics["rate"]
    assert "failed: it broke" in tables(run)


@pytest.mark.parametrize("how", ["an error", "missing"])
def test_what_a_cell_says_does_not_name_the_place_where_it_ran(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    # In place of a cell's process: one that fails in its store, or lacks something there.
    saying = "import json, sys; where = json.loads(sys.argv[-1])['directory'] + '/jobs.wheel: the journal is closed';"
    end = {"an error": "raise OSError(where)", "missing": "print(json.dumps({'missing': where}))"}[how]
    popen = subprocess.Popen

    def start(command: list[str], **options: Any) -> subprocess.Popen[str]:
        return popen([sys.executable, "-c", saying + end, command[-1]], **options)

    monkeypatch.setattr(subprocess, "Popen", start)
    found = run_child(plan("one"), "one", "bare", tmp_path / "cell", 0)
    assert found == {"an error": "failed: OSError: ", "missing": ""}[how] + "the store: the journal is closed"


def test_what_a_cell_started_ends_with_it() -> None:
    child = subprocess.Popen(
        ["sh", "-c", "sleep 1000 & echo $!; wait"], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert child.stdout is not None
    grandchild = int(child.stdout.readline())
    end_group(child)
    child.stdout.close()
    state = Path(f"/proc/{grandchild}/stat")
    assert not state.exists() or state.read_text().rpartition(")")[2].split()[0] == "Z"


def test_what_was_measured_is_kept_when_interrupted(tmp_path: Path) -> None:
    where, result = tmp_path / "where", tmp_path / "out" / "run.json"
    where.mkdir()
    bench = subprocess.Popen(
        [sys.executable, "-m", "tests.bench", "--only", "one,sustained", "--peers", "bare,sqlite", "--places", "plain",
         "--dir", str(where), "--rounds", "1000", "--seconds", "0.02", "--json", str(result)],
        cwd=REPO, env={**os.environ, "PYTHONPATH": str(REPO)}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert bench.stderr is not None
    first = bench.stderr.readline()
    assert "plain one bare 1/1000" in first, first + bench.stderr.read()
    time.sleep(0.1)
    bench.send_signal(signal.SIGINT)
    out, err = bench.communicate(timeout=60)
    assert bench.returncode == 130, err
    assert "pwrite + fdatasync" in out
    assert load_run(result).median("plain", "one", "bare", "rate")
    assert json.loads(result.read_text())["machine"]["plan"]["rounds"] == 1000
    assert not list(where.iterdir())


def test_a_place_takes_what_was_in_it(tmp_path: Path) -> None:
    with place("plain", tmp_path) as directory:
        (directory / "file").write_text("x")
    assert not list(tmp_path.iterdir())
    with pytest.raises(Missing, match="no file system 'ntfs'"), place("ntfs", tmp_path):
        pass
    assert not list(tmp_path.iterdir())
