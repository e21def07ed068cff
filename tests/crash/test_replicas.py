"""The load on sets, as far as it can be tried on a wheel that stands alone; and what rounds are made of."""

from __future__ import annotations

import time
from pathlib import Path

from filewheel.wheel import Wheel
from tests.crash.cast import Cast
from tests.crash.disaster import DISASTERS, Deleted
from tests.crash.marks import Marks, read_marks
from tests.crash.replicas import SLOTS, plan_of, waiting
from tests.crash.set_cast import SetDrain, SetKeeper, SetProducer
from tests.crash.verdict_set import Policy, judge


def load(path: Path, folder: Path, seconds: float, *, strike: bool = False) -> None:
    """Let two producers and two keepers use a wheel; with `strike`, delete it half way."""
    (folder / "primary").write_text(str(path))
    marks = Marks(folder / "marks" / "0000-conductor")
    marks.tell("primary", str(path))
    with Cast(folder / "primary", folder / "marks", 1) as cast:
        pids = [cast.start(role, lasts_s=seconds) for role in (SetProducer, SetProducer, SetKeeper, SetKeeper)]
        if strike:
            time.sleep(seconds / 2)
            since = time.monotonic_ns()
            Deleted().apply(path)
            marks.tell("disaster", "deleted", str(path), True, since=since)
        else:
            time.sleep(seconds / 2)
            cast.kill(pids[2])
            cast.start(SetKeeper, lasts_s=seconds / 2)
        for pid in list(cast.alive):
            assert cast.wait(pid, 30)
        if not strike:
            assert cast.wait(cast.start(SetDrain), 30)


def test_producers_and_keepers_of_a_wheel_that_stands_alone_lose_nothing_though_one_is_killed(tmp_path: Path) -> None:
    path = tmp_path / "jobs.wheel"
    (tmp_path / "marks").mkdir()
    Wheel.create(path, slots=SLOTS).close()
    load(path, tmp_path, 1.0)
    told = read_marks(tmp_path / "marks")
    assert judge(told, waiting(path), Policy("mirror")) == []
    kinds = [m[0] for lines in told.values() for m in lines]
    assert kinds.count("put") > 20
    assert kinds.count("fire") > 3
    assert "refused" not in kinds


def test_a_wheel_that_is_deleted_with_nothing_in_its_place_is_a_loss_that_the_judge_names(tmp_path: Path) -> None:
    path = tmp_path / "jobs.wheel"
    (tmp_path / "marks").mkdir()
    Wheel.create(path, slots=SLOTS).close()
    load(path, tmp_path, 1.0, strike=True)
    said = judge(read_marks(tmp_path / "marks"), set(), Policy("mirror"))
    assert any("was acknowledged with 1 copies, and neither fired nor waits" in text for text in said)


def test_among_the_rounds_is_every_disaster_to_either_wheel_of_every_kind_of_set() -> None:
    count = 2 * 3 * 2 * 2 * (len(DISASTERS) + 1)
    plans = [plan_of(n) for n in range(count)]
    assert {p.disaster for p in plans[: len(DISASTERS) + 1]} == {"", *DISASTERS}
    assert len(set(plans)) == 2 * 2 * 2 * 2 * (len(DISASTERS) + 1)
