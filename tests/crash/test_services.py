"""The services of the sweep, a replicator with its threads and a scheduler, keep every promise when nothing fails."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.conftest import assert_whole
from tests.crash.actor import Actor, Fact
from tests.crash.fault import pending_in
from tests.crash.promises import Promises
from tests.crash.scenarios import Scenario, tiny
from tests.crash.scheduler_scenarios import SCHEDULER_SCENARIOS, Jobs, hasty
from tests.crash.set_scenarios import SET_SCENARIOS, SetActor, alone
from tests.crash.set_whole import make_whole
from tests.support import FakeClock


def played(scenario: Scenario, place: Path) -> tuple[list[Fact], int]:
    """Play a scenario in which nothing fails; return what was said, and the time at its end."""
    marks: list[Fact] = []
    kind: type[Actor] = SetActor if scenario.is_set else Jobs
    with tiny(), alone(), hasty():
        actor = kind(str(place / "jobs.wheel"), marks.append, name="p")
        assert scenario.prepare is not None
        scenario.prepare(actor)
        actor.close()
        actor = kind(actor.path, marks.append, ids=[i.hex() for i in actor.ids], now_us=actor.clock.now_us())
        scenario.run(actor)
        actor.close()
    return marks, actor.clock.now_us()


@pytest.mark.parametrize("name", ["serve", "serve-heal", "serve-promoted"])
def test_a_replicator_that_runs_in_turns_brings_its_set_in_step_while_it_is_used(tmp_path: Path, name: str) -> None:
    marks, now_us = played(SET_SCENARIOS[name], tmp_path)
    assert [m for m in marks if m["phase"] in ("raised", "bare", "stuck")] == []
    assert [m["phase"] for m in marks if m["op"] == "serve"] == ["begin", "end"]
    primary, wrong, _ = make_whole(tmp_path, now_us, damages=name == "serve-heal")
    assert wrong == []
    promises = Promises()
    promises.read(marks)
    assert promises.wrong + promises.judge(pending_in(primary, FakeClock(now_us)), forgets=False) == []


@pytest.mark.parametrize("name", ["jobs", "job-threads"])
def test_a_scheduler_of_the_sweep_keeps_what_it_promises(tmp_path: Path, name: str) -> None:
    marks, now_us = played(SCHEDULER_SCENARIOS[name], tmp_path)
    promises = Promises()
    promises.read(marks)
    pending = pending_in(tmp_path / "jobs.wheel", FakeClock(now_us))
    assert promises.wrong + promises.judge(pending, forgets=False) == []
    kinds = Counter((m["op"], m["phase"]) for m in marks)
    assert all(kinds[kind] for kind in [("claim", "end"), ("nack", "begin"), ("ack", "end"), ("bury", "begin")])
    # A job that comes back, and an occurrence that does not, are seen.
    fired = next(m for m in marks if m["op"] == "ack" and m["phase"] == "end")["ids"][0]
    payload = promises.of_id[bytes.fromhex(fired)]
    (due,) = {m["fired"][0][2] for m in marks if m["op"] == "claim" and m["fired"][0][0] == fired}
    assert promises.judge([*pending, (bytes.fromhex(fired), payload, due)], forgets=False)
    occurrences = [p for p in pending if not p[1].startswith(("p", "r"))]
    assert promises.judge([p for p in pending if p not in occurrences], forgets=False)
    assert_whole(tmp_path / "jobs.wheel")
