"""The runner of campaigns: it keeps the budget, adds up what shards say, and names what shows a violation again."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from filewheel import Keeper, Wheel
from filewheel.disk.checkpoint import Position
from tests.conftest import assert_whole
from tests.crash.campaign import Campaign, Tally
from tests.crash.report import markdown, total
from tests.crash.runner import REPO, parse
from tests.crash.scenarios import tiny
from tests.crash.shard import numbers, play


def crash(*args: str, mutant: str = "") -> subprocess.CompletedProcess[str]:
    environ = os.environ | {"FILEWHEEL_MUTANT": mutant}
    command = [sys.executable, "-m", "tests.crash", *args]
    return subprocess.run(command, cwd=REPO, env=environ, capture_output=True, text=True, timeout=60, check=False)


def campaign(rounds: int | None, play: object = None) -> Campaign:
    return Campaign("x", "an x", play or (lambda n, t, r: None), 1.0, {}, rounds=rounds)  # type: ignore[arg-type]


@pytest.mark.parametrize("lanes", [1, 2, 3])
@pytest.mark.parametrize("seed", [0, 7, 1_800_000_001])
def test_the_shards_of_a_campaign_with_so_many_rounds_play_each_once(lanes: int, seed: int) -> None:
    first = seed - seed % lanes
    played = [n for lane in range(lanes) for n in numbers(campaign(10), first + lane, lanes)]
    assert sorted(played) == list(range(10))


def test_an_error_that_escapes_a_round_is_a_violation_that_names_the_round() -> None:
    def fails(number: int, tally: Tally, rig: object) -> None:
        tally.count("tries")
        raise OSError("what nobody expected")

    tally = play(campaign(None, fails), 5, None)
    assert tally.counts == {"tries": 1, "rounds": 1}
    (violation,) = tally.violations
    assert "what nobody expected" in violation.text
    assert violation.again == "python -m tests.crash --round x:5"


def test_what_a_shard_says_is_added_up() -> None:
    sum_ = Tally("x")
    for kills in (3, 4):
        line = {
            "counts": {"kills": kills},
            "skipped": {},
            "violations": [{"campaign": "x", "round": kills, "text": "lost"}],
        }
        sum_.add(parse(campaign(None), json.dumps(line).encode()))
    assert sum_.counts == {"kills": 7}
    assert [v.round for v in sum_.violations] == [3, 4]


def test_a_run_that_finds_nothing_exits_0_and_writes_what_it_tried(tmp_path: Path) -> None:
    done = crash("--only", "script", "--budget", "1s", "--seed", "3", "--json", str(tmp_path / "run.json"))
    assert done.returncode == 0, done.stderr
    data = json.loads((tmp_path / "run.json").read_text())
    assert data["seed"] == 3
    assert data["campaigns"][0]["counts"]["crash states"] > 100
    assert "crash states; 0 violations" in done.stdout
    assert total(data) in done.stdout
    assert "a schedule for each hazard" in markdown(data)


def test_a_planted_bug_is_found_and_what_shows_it_again_does(tmp_path: Path) -> None:
    # A fixed seed, so that the first rounds fail however few the machine gets through.
    done = crash("--only", "longer", "--budget", "1s", "--seed", "1795248206", mutant="slots-unflushed")
    assert done.returncode == 1, done.stderr
    lines = done.stdout.splitlines()
    at = next(at for at, line in enumerate(lines) if line.startswith("python -m tests.crash --round "))
    name = lines[at].rpartition(" ")[2]
    shown = crash("--round", name, mutant="slots-unflushed")
    assert shown.returncode == 1
    assert lines[at + 1] in shown.stdout
    assert crash("--round", name).returncode == 0


@pytest.mark.parametrize(
    ("args", "said"),
    [(["--only", "kills"], "no campaign 'kills'; there are mutant,"), (["--round", "kill"], "is not NAME:NUMBER")],
)
def test_a_wrong_name_is_answered_with_those_there_are(args: list[str], said: str) -> None:
    done = crash(*args)
    assert done.returncode == 2
    assert said in done.stderr


def test_a_producer_of_the_sweep_tidies_when_it_is_closed_and_keeps_no_keeper_out_before(wheel_dir: Path) -> None:
    with tiny():
        wheel = Wheel(wheel_dir)
        wheel.enqueue(b"x", delay=60)
        before = set(threading.enumerate())
        wheel._tidier.segment_ended("a", Position(1, 0, 0), False)
        assert not set(threading.enumerate()) - before
        Keeper(wheel_dir, wait=False, background=False).close()
        wheel.close()
    assert_whole(wheel_dir)
