"""Promotion: one primary comes out, nothing that was acknowledged is lost, and whoever can see it stops."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from dataclasses import replace

import pytest

from filewheel import Keeper, Wheel
from filewheel.disk.directory import open_directory
from filewheel.disk.disk import SYSTEM, OsDisk
from filewheel.env import DiskFactory
from filewheel.errors import BadArgument, Fenced, FilewheelError, KeyHeld, Locked
from filewheel.roster.roster import Mode, Roster, State, change_roster, roster_at
from filewheel.sets import peers
from filewheel.sets import promote as promoting
from filewheel.sets.members import add_backup
from filewheel.sets.promote import Promotion, promote
from filewheel.sets.rejoin import rejoin
from filewheel.sets.replicator import Replicator
from tests.sets.support_sets import Place, in_thread, place, role_of
from tests.support import FaultyDisk, eventually

__all__ = ["place"]


def alter(path: object, change: Callable[[Roster], Roster]) -> None:
    directory = open_directory(str(path), write=True)
    change_roster(directory, lambda old: old and change(old))
    directory.disk.release()


def go(place: Place, path: object, disk: DiskFactory | None = None, **options: object) -> Promotion:
    return promote(str(path), env=SYSTEM.using(clock=place.clock, disk=disk), wait_s=0, **options)  # type: ignore[arg-type]


def test_everything_that_the_old_primary_held_fires_in_the_new_one_and_nothing_in_the_old(place: Place) -> None:
    place.make_set(place.b, place.c)
    place.enqueue(place.a, *"abc")
    place.enqueue(place.a, "later", delay=3000)
    done = go(place, place.b)
    assert (done.epoch, done.old_primary, done.caught_up, done.unreachable) == (2, str(place.a), True, [])
    assert sorted(done.fenced) == [str(place.a), str(place.c)]
    assert [role_of(p) for p in (place.a, place.b, place.c)] == ["fenced", "primary", "backup"]
    assert place.may_fire() == [place.b]
    assert place.fire(place.b) == ["a", "b", "c"]
    assert place.payloads(place.b) == ["later"]
    with pytest.raises(Fenced, match="was promoted in place"):
        place.enqueue(place.a, "x")


def test_a_keeper_that_runs_stops_before_its_next_claim_and_acknowledges_what_is_in_flight(place: Place) -> None:
    place.make_set(place.b)
    place.enqueue(place.a, "x", "y")
    keeper = Keeper(place.a, background=False, clock=place.clock)
    batch = keeper.claim(1)
    done = go(place, place.b)
    assert done.caught_up
    assert any("still runs" in note for note in done.notes)
    with pytest.raises(Fenced):
        keeper.claim()
    assert keeper.ack(batch) == 1
    keeper.close()
    assert place.fire(place.b) == ["x", "y"]  # at least once: the acknowledgement came after


@pytest.mark.parametrize("gone", ["deleted", "another wheel"])
def test_with_the_old_primary_gone_what_was_shipped_fires(place: Place, gone: str) -> None:
    place.make_set(place.b)
    place.enqueue(place.a, "x")
    place.level(place.a)
    shutil.rmtree(place.a)
    if gone == "another wheel":
        place.make(place.a)
    done = go(place, place.b)
    assert (done.caught_up, done.unreachable) == (False, [str(place.a)])
    assert place.fire(place.b) == ["x"]
    if gone == "another wheel":
        assert role_of(place.a) == "alone"


def test_an_old_primary_that_cannot_be_written_is_read_to_its_end_and_its_keeper_stops_by_itself(place: Place) -> None:
    place.make_set(place.b)
    place.enqueue(place.a, "shipped")
    place.level(place.a)
    place.enqueue(place.a, "late")
    keeper = Keeper(place.a, background=False, clock=place.clock)

    def disk(path: str) -> OsDisk:
        def fail(kind: str, name: str) -> None:
            if path == str(place.a) and name == "roster.json.tmp":
                raise OSError(30, "Read-only file system")

        return FaultyDisk(path, fail)

    done = go(place, place.b, disk=disk)
    assert (done.caught_up, done.unreachable) == (True, [str(place.a)])
    assert role_of(place.a) == "primary"
    with pytest.raises(Fenced):
        keeper.claim()
    keeper.close()
    assert role_of(place.a) == "fenced"
    assert place.fire(place.b) == ["late", "shipped"]


def test_an_old_primary_whose_disk_hangs_holds_nothing_up(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.make_set(place.b)
    place.enqueue(place.a, "x")
    place.level(place.a)
    monkeypatch.setattr(peers, "ANSWER_S", 0.05)
    answers = threading.Event()

    def disk(path: str) -> OsDisk:
        if path == str(place.a):
            answers.wait(2)
        return OsDisk(path)

    done = go(place, place.b, disk=disk)
    assert (done.caught_up, done.unreachable) == (False, [str(place.a)])
    assert place.fire(place.b) == ["x"]
    assert not answers.is_set()
    answers.set()
    eventually(lambda: not [t for t in threading.enumerate() if t.name == "filewheel-promote"])


def rival_before(
    place: Place, monkeypatch: pytest.MonkeyPatch, step: str, first: object, second: object
) -> list[Promotion | FilewheelError]:
    """Promote one backup, and another one whole before a step of the first."""
    results: list[Promotion | FilewheelError] = []
    inner = getattr(promoting.Promoting, step)
    ran = False

    def slow(self: object, *args: object) -> object:
        nonlocal ran
        if not ran:
            ran = True
            try:
                results.append(go(place, second))
            except FilewheelError as exc:
                results.append(exc)
        return inner(self, *args)

    monkeypatch.setattr(promoting.Promoting, step, slow)
    try:
        results.append(go(place, first))
    except FilewheelError as exc:
        results.append(exc)
    return results


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("step", ["_run", "_fence", "_catch_up", "_check_alone", "_become_primary"])
def test_of_two_promotions_that_cross_one_primary_comes_out(
    place: Place, monkeypatch: pytest.MonkeyPatch, step: str, turned: bool
) -> None:
    place.make_set(place.b, place.c)
    place.enqueue(place.a, "x")
    place.level(place.a)
    pair = (place.c, place.b) if turned else (place.b, place.c)
    results = rival_before(place, monkeypatch, step, *pair)
    roles = sorted(role_of(p) for p in pair)
    assert roles in (["backup", "primary"], ["fenced", "primary"]), results
    (primary,) = place.may_fire()
    assert place.fire(primary) == ["x"]
    epochs = {roster.epoch for p in pair if (roster := roster_at(p)) is not None}
    assert len(epochs) == 1


@pytest.mark.parametrize("turned", [False, True])
def test_of_two_that_have_both_written_that_they_are_being_promoted_one_goes_on(place: Place, turned: bool) -> None:
    place.make_set(place.b, place.c)
    place.enqueue(place.a, "x")
    place.level(place.a)
    acts = []
    for path in (place.c, place.b) if turned else (place.b, place.c):
        here = open_directory(path, write=False, env=SYSTEM.using(clock=place.clock))
        roster = roster_at(path)
        assert roster is not None
        me = roster.member(here.settings.id)
        assert me is not None
        act = promoting.Promoting(here, roster, me)
        act._say("promoting", 1)
        acts.append(act)
    for act in acts:
        act._say("promoting", 2)
    went_on = 0
    # Each looks before either becomes the primary.
    for act in acts:
        try:
            act._check_alone(2)
        except Fenced:
            continue
        act._become_primary(2)
        went_on += 1
    assert went_on == 1
    assert sorted(role_of(p) for p in (place.b, place.c)) == ["backup", "primary"]
    for act in acts:
        act._here.disk.release()


def test_one_that_looked_before_its_rival_wrote_is_stopped_by_what_that_writes(place: Place) -> None:
    place.make_set(place.b, place.c)
    acts = {}
    for path in (place.b, place.c):
        here = open_directory(path, write=False, env=SYSTEM.using(clock=place.clock))
        roster = roster_at(path)
        assert roster is not None
        me = roster.member(here.settings.id)
        assert me is not None
        acts[here.settings.id] = promoting.Promoting(here, roster, me)
    low, high = (acts[wheel] for wheel in sorted(acts))
    low._say("promoting", 1)
    low._say("promoting", 2)
    low._check_alone(2)
    high._say("promoting", 1)
    high._say("promoting", 2)
    high._check_alone(2)
    with pytest.raises(Fenced, match="at the same time"):
        low._become_primary(2)
    high._become_primary(2)
    assert len(place.may_fire()) == 1
    for act in (low, high):
        act._here.disk.release()


def test_a_second_promotion_of_the_same_backup_undoes_nothing_of_the_first(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.make_set(place.b)
    results = rival_before(place, monkeypatch, "_run", place.b, place.b)
    assert [type(r) for r in results] == [Locked, Promotion]
    assert role_of(place.b) == "primary"


@pytest.mark.parametrize("state", ["joining", "stale"])
def test_a_backup_that_is_known_to_lack_something_is_refused_unless_forced(place: Place, state: State) -> None:
    place.make_set(place.b)
    place.enqueue(place.a, "x")
    alter(place.a, lambda r: r.with_member(replace(r.members[0], state=state, since_us=1 << 60)))
    with pytest.raises(BadArgument, match=f"is {state}, says {place.a}"):
        go(place, place.b)
    assert (role_of(place.a), role_of(place.b)) == ("primary", "backup")
    shutil.rmtree(place.a)
    alter(place.b, lambda r: r.with_member(replace(r.members[0], state=state, since_us=1 << 60)))
    with pytest.raises(BadArgument, match=f"is {state}, says {place.b}"):
        go(place, place.b)
    done = go(place, place.b, force=True)
    assert f"it was {state}: the messages that it lacked are not in it" in done.notes
    assert role_of(place.b) == "primary"


@pytest.mark.parametrize("state", ["joining", "stale"])
def test_one_that_is_forced_and_takes_what_it_lacked_from_the_old_primary_says_so(place: Place, state: State) -> None:
    place.make_set(place.b)
    place.enqueue(place.a, "x")
    alter(place.a, lambda r: r.with_member(replace(r.members[0], state=state, since_us=1 << 60)))
    done = go(place, place.b, force=True)
    assert done.caught_up
    assert done.notes == [f"it was {state}: the messages that it lacked were copied from {place.a}"]
    assert place.payloads(place.b) == ["x"]


def test_one_that_was_in_step_a_moment_ago_may_be_promoted_though_the_primary_is_gone(place: Place) -> None:
    place.make_set(place.b)
    shutil.rmtree(place.a)
    assert go(place, place.b).epoch == 2


def test_what_is_no_backup_is_not_promoted(place: Place) -> None:
    place.make(place.a)
    with pytest.raises(BadArgument, match="in no set"):
        go(place, place.a)
    place.make_set(place.b)
    assert go(place, place.a).notes == ["it was the primary already"]
    go(place, place.b)
    with pytest.raises(BadArgument, match="was fenced"):
        go(place, place.a)


def test_a_backup_that_came_into_the_set_just_now_is_told_though_the_other_did_not_know_it(place: Place) -> None:
    place.make_set(place.b)
    add_backup(place.a, place.c, env=SYSTEM.using(clock=place.clock))
    assert str(place.c) in go(place, place.b).fenced
    roster = roster_at(place.b)
    assert roster is not None
    assert {m.path: m.state for m in roster.members} == {str(place.a): "fenced", str(place.c): "joining"}


def test_a_wheel_that_was_fenced_before_stays_fenced_through_another_promotion(place: Place) -> None:
    place.make_set(place.b, place.c)
    go(place, place.b)
    place.level(place.b)
    go(place, place.c)
    assert [role_of(p) for p in (place.a, place.b, place.c)] == ["fenced", "fenced", "primary"]
    roster = roster_at(place.c)
    assert roster is not None
    assert {m.path: m.state for m in roster.members} == {str(place.a): "fenced", str(place.b): "fenced"}


@pytest.mark.parametrize("backups", [1, 2])
def test_a_promotion_cut_short_anywhere_is_ended_by_another(place: Place, backups: int) -> None:
    place.make_set(*[place.b, place.c][:backups])
    place.enqueue(place.a, "x", "y")
    place.level(place.a)
    place.enqueue(place.a, "late")
    cut, epochs = 0, set()
    for killed in place.cut_short(lambda fuse: go(place, place.b, disk=fuse.disk), every=3):
        cut += killed
        assert len(place.may_fire()) <= 1
        before = roster_at(place.b)
        assert before is not None
        go(place, place.b)
        after = roster_at(place.b)
        assert after is not None
        assert after.epoch > before.epoch or before.role == "primary"
        epochs.add(after.epoch)
        assert place.may_fire() == [place.b]
        assert place.fire(place.b) == ["late", "x", "y"]
    assert cut > 10
    assert epochs == {2, 3}


def test_a_promotion_cut_short_can_be_given_up_for_that_of_another_backup_which_reads_the_real_primary(
    place: Place,
) -> None:
    place.make_set(place.b, place.c)
    place.enqueue(place.a, "x")
    place.level(place.a)
    place.enqueue(place.a, "late")
    for _ in place.cut_short(lambda fuse: go(place, place.b, disk=fuse.disk), every=9):
        if role_of(place.b) != "primary":
            done = go(place, place.c)
            assert (done.old_primary, done.caught_up) == (str(place.a), True)
            assert place.may_fire() == [place.c]
            assert place.fire(place.c) == ["late", "x"]


def interrupted(place: Place, monkeypatch: pytest.MonkeyPatch, path: object) -> None:
    """Promote a wheel, with Ctrl-C while it waits for the keeper of the primary."""

    def wait(self: object, wait_s: float) -> object:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(promoting.Promoting, "_keeper_stopped", wait)
        with pytest.raises(KeyboardInterrupt):
            go(place, path)


@pytest.mark.parametrize("mode", ["mirror", "ship"])
def test_after_ctrl_c_while_it_waits_for_a_keeper_that_hangs_another_backup_gets_what_the_primary_holds(
    place: Place, monkeypatch: pytest.MonkeyPatch, mode: Mode
) -> None:
    place.make_set(place.b, place.c, mode=mode)
    gone, *_ = place.enqueue(place.a, "cancelled", "shipped")
    place.level(place.a)
    keeper = Keeper(place.a, background=False, clock=place.clock)  # it was stopped, and claims nothing
    with Wheel(place.a, clock=place.clock) as wheel:
        assert wheel.cancel(gone)
    place.enqueue(place.a, "late")
    interrupted(place, monkeypatch, place.c)
    assert place.may_fire() == []
    with pytest.raises(Fenced, match="is being promoted"):
        place.enqueue(place.a, "x")
    done = go(place, place.b)
    assert (done.old_primary, done.caught_up, done.epoch) == (str(place.a), True, 3)
    with pytest.raises(Fenced):
        keeper.claim()
    keeper.close()
    assert place.may_fire() == [place.b]
    assert place.fire(place.b) == ["late", "shipped"]
    assert [role_of(path) for path in (place.a, place.c)] == ["fenced", "backup"]


def test_a_primary_that_was_fenced_by_a_promotion_that_was_cut_short_is_promoted_again_itself(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.make_set(place.b, place.c)
    place.enqueue(place.a, "x")
    interrupted(place, monkeypatch, place.c)
    assert role_of(place.a) == "fenced"
    done = go(place, place.a)
    assert (done.epoch, done.caught_up) == (3, True)
    assert place.may_fire() == [place.a]
    place.level(place.a)
    assert place.payloads(place.b) == place.payloads(place.c) == ["x"]
    assert place.fire(place.a) == ["x"]


def test_a_primary_that_yields_to_a_promotion_that_was_cut_short_is_read_by_the_next(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.make_set(place.b, place.c)
    place.enqueue(place.a, "x")
    place.level(place.a)
    place.enqueue(place.a, "late")
    heir = open_directory(place.c, write=False).settings.id
    # What this wheel knows of the office counts for more than what an announcement names.
    alter(place.c, lambda r: replace(r.announced(2, "promoting"), primary=str(place.c), primary_wheel=heir))
    with pytest.raises(Fenced):
        place.fire(place.a)
    yielded = roster_at(place.a)
    assert yielded is not None
    assert (yielded.role, yielded.primary, yielded.held) == ("fenced", str(place.a), 1)
    done = go(place, place.b)
    assert (done.old_primary, done.caught_up) == (str(place.a), True)
    assert place.fire(place.b) == ["late", "x"]


def test_a_primary_in_whose_place_another_was_promoted_is_not_promoted_again(place: Place) -> None:
    place.make_set(place.b, place.c)
    go(place, place.b)
    place.b.rename(place.base / "lost")
    with pytest.raises(BadArgument, match="was fenced"):
        go(place, place.a)


def test_when_what_had_begun_to_be_promoted_cannot_be_seen_another_is_not_called_caught_up(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.make_set(place.b, place.c)
    interrupted(place, monkeypatch, place.c)
    place.c.rename(place.base / "lost")
    done = go(place, place.b)
    assert not done.caught_up
    assert any(f"{place.c} cannot be reached" in note for note in done.notes)
    (place.base / "lost").rename(place.c)
    assert place.may_fire() == [place.b]


def test_what_the_primary_knows_of_its_backups_counts_though_a_promotion_has_fenced_it(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.make_set(place.b, place.c)
    interrupted(place, monkeypatch, place.c)
    b = roster_at(place.b)
    assert b is not None
    wheel = next(m.wheel for m in b.members if m.path == str(place.b))
    alter(place.a, lambda r: r.with_member(replace(r.member(wheel) or r.members[0], state="stale", since_us=1 << 60)))
    with pytest.raises(BadArgument, match=f"is stale, says {place.a}"):
        go(place, place.b)


@pytest.mark.parametrize("killed", [False, True])
def test_a_promotion_that_ended_before_it_had_told_anybody_has_changed_nothing(
    place: Place, monkeypatch: pytest.MonkeyPatch, killed: bool
) -> None:
    place.make_set(place.b)
    place.enqueue(place.a, "x")

    def wait(wait_s: float, act: object) -> object:
        raise KeyboardInterrupt

    if killed:
        alter(place.b, lambda r: replace(r, role="promoting"))
    else:
        monkeypatch.setattr(promoting, "when_free", wait)
        with pytest.raises(KeyboardInterrupt):
            go(place, place.b)
        assert role_of(place.b) == "backup"
    (report,) = place.level(place.a)
    assert report.error == ""
    assert role_of(place.b) == "backup"
    assert place.payloads(place.b) == ["x"]


def test_while_a_promotion_is_at_work_a_link_leaves_its_wheel_alone(place: Place) -> None:
    place.make_set(place.b)
    alter(place.b, lambda r: replace(r, role="promoting"))
    wheels = [(str(path), open_directory(path, write=False).settings.id) for path in (place.a, place.b)]
    with peers.Peers(SYSTEM).alone(wheels):
        (report,) = place.level(place.a)
        assert "not a backup of the set" in report.error
        with pytest.raises(Locked, match="another promotion"):
            go(place, place.b)
    assert go(place, place.b).caught_up


def test_of_several_that_were_promoted_the_last_is_named_and_gives_what_it_has_when_it_rejoins(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.make_set(place.b, place.c)
    monkeypatch.setattr(promoting.Promoting, "_announce", lambda *args: None)
    go(place, place.b)
    place.enqueue(place.b, "new")
    done = go(place, place.c, force=True)
    assert (done.old_primary, done.caught_up) == (str(place.b), False)
    assert "of another line" in done.notes[0]
    assert place.fire(place.c) == []
    assert rejoin(place.b, env=SYSTEM.using(clock=place.clock)).kept == 1
    assert place.fire(place.c) == ["new"]


def test_a_key_that_is_held_is_refused_at_once_and_what_was_cancelled_stays_cancelled(place: Place) -> None:
    place.make_set(place.b)
    place.enqueue(place.a, "held", delay=1000, key="k")
    gone, _ = place.enqueue(place.a, "cancelled", "kept")
    with Wheel(place.a, clock=place.clock) as wheel:
        assert wheel.cancel(gone)
    go(place, place.b)
    with pytest.raises(KeyHeld):
        place.enqueue(place.b, "second", key="k")
    assert place.fire(place.b) == ["kept"]


def test_with_a_replicator_running_it_lets_go_and_everything_is_there(place: Place) -> None:
    place.make_set(place.b)
    with Replicator(place.a, interval_s=0.005, env=SYSTEM.using(clock=place.clock)) as replicator:
        thread = in_thread(replicator.run)
        eventually(lambda: [r.state for r in replicator.status()] == ["following"])
        place.enqueue(place.a, *"abcdef")
        assert go(place, place.b).caught_up
        assert place.fire(place.b) == list("abcdef")
        replicator.stop()
        thread.join(120)
        assert not thread.is_alive()


def test_one_that_rejoined_a_moment_ago_is_a_backup_though_the_promoted_wheel_had_not_heard(place: Place) -> None:
    place.make_set(place.b, place.c)
    go(place, place.b)
    place.level(place.b)
    rejoin(place.a, env=SYSTEM.using(clock=place.clock))
    place.b.rename(place.base / "lost")
    go(place, place.c)
    assert [r.path for r in place.level(place.c)] == [str(place.a)]


def test_after_one_round_each_backup_knows_the_whole_set(place: Place) -> None:
    place.make_set(place.b, place.c)
    ours, theirs = roster_at(place.a), roster_at(place.b)
    assert ours is not None
    assert theirs is not None
    assert [m.state for m in theirs.members] == ["current", "current"]
    assert theirs == replace(ours, role="backup") == roster_at(place.c)
