"""What only another backup, or the old primary, has is not lost when a wheel is promoted."""

from __future__ import annotations

import time
from pathlib import Path

from filewheel import Keeper, Replicator, Wheel, add_backup, promote, rejoin
from filewheel.disk.directory import open_directory
from filewheel.journal.journal import Journal
from filewheel.lookup.snapshot import Snapshot
from filewheel.roster.roster import read_roster
from filewheel.sets.link import Link
from filewheel.tools.diff import differences


def a_set(tmp_path: Path) -> tuple[str, str, str]:
    """A primary and two shipped backups in step with it, holding three messages."""
    a, b, c = (str(tmp_path / name) for name in "abc")
    with Wheel.create(a) as wheel:
        for n in range(3):
            wheel.enqueue(b"%d" % n, delay=3600)
    add_backup(a, b)
    add_backup(a, c)
    with Replicator(a) as replicator:
        assert [r.error for r in replicator.once()] == ["", ""]
    return a, b, c


def put_of(path: str, payload: bytes) -> bytes:
    """Enqueue into a wheel, and return the packed put."""
    with Wheel(path) as wheel:
        id_ = wheel.enqueue(payload, delay=3600)
    directory = open_directory(path, write=False)
    with Snapshot(directory) as snapshot:
        put = snapshot.find([id_])[id_]
    directory.disk.release()
    return put


def write_to(path: str, records: list[bytes], puts: int) -> None:
    directory = open_directory(path, write=True)
    journal = Journal(directory)
    journal.append(records, puts)
    journal.close()
    directory.disk.release()


def bring_in_step(primary: str, backup: str) -> None:
    """Serve one backup alone."""
    link = link_to(primary, backup)
    link.catch_up(lambda: time.sleep(0.02))
    link.close()


def link_to(primary: str, backup: str) -> Link:
    """Open the link from a primary to one of its backups."""
    directory = open_directory(primary, write=False)
    roster = read_roster(directory.disk, primary)
    directory.disk.release()
    assert roster is not None
    return Link(primary, next(m for m in roster.members if m.path == backup))


def payloads(path: str) -> list[bytes]:
    with Wheel(path) as wheel, wheel.snapshot() as snapshot:
        return sorted(m.payload for m in snapshot.messages())


def test_what_a_backup_had_before_the_one_that_was_promoted_goes_to_it(tmp_path: Path) -> None:
    a, b, c = a_set(tmp_path)
    put = put_of(a, b"only in c")
    write_to(c, [put], 1)  # the replicator had come to c, and not to b, when a was lost
    (tmp_path / "a").rename(tmp_path / "lost")
    done = promote(b)
    assert done.unreachable == [a]
    assert b"only in c" not in payloads(b)
    with Replicator(b) as replicator:
        report = next(r for r in replicator.once() if r.path == c)
    assert (report.error, report.returned) == ("", 1)
    assert b"only in c" in payloads(b)
    with Wheel(b) as first, Wheel(c) as second:
        assert list(differences(first, second)) == []
    directory = open_directory(b, write=False)
    roster = read_roster(directory.disk, b)
    assert roster is not None
    assert [m.absorb for m in roster.members if m.path == c] == [False]
    directory.disk.release()


def test_what_the_promoted_wheel_has_fired_since_does_not_come_back_from_another_backup(tmp_path: Path) -> None:
    a, b, c = a_set(tmp_path)
    with Wheel(a) as wheel:
        wheel.enqueue(b"due", delay=0)
    with Replicator(a) as replicator:
        replicator.once()
    (tmp_path / "a").rename(tmp_path / "lost")
    promote(b)
    with Keeper(b) as keeper:
        batch = keeper.claim()
        assert [m.payload for m in batch] == [b"due"]
        keeper.ack(batch)
    with Replicator(b) as replicator:
        report = next(r for r in replicator.once() if r.path == c)
    assert (report.error, report.returned) == ("", 0)
    assert payloads(b) == payloads(c) == [b"0", b"1", b"2"]


def test_a_backup_that_was_not_in_step_gives_nothing_to_the_promoted_one(tmp_path: Path) -> None:
    a, b, c = a_set(tmp_path)
    directory = open_directory(a, write=True)
    from dataclasses import replace

    from filewheel.roster.roster import Roster, change_roster

    def mark(roster: Roster | None) -> Roster | None:
        assert roster is not None
        member = next(m for m in roster.members if m.path == c)
        return roster.with_member(replace(member, state="stale", since_us=member.since_us + 1))

    change_roster(directory, mark)
    there = open_directory(b, write=True)
    change_roster(there, mark)
    there.disk.release()
    directory.disk.release()
    put = put_of(a, b"finished long ago")
    write_to(c, [put], 1)
    (tmp_path / "a").rename(tmp_path / "lost")
    promote(b)
    with Replicator(b) as replicator:
        report = next(r for r in replicator.once() if r.path == c)
    assert (report.error, report.returned) == ("", 0)
    assert payloads(b) == payloads(c) == [b"0", b"1", b"2"]


def test_what_was_cancelled_and_a_backup_that_lags_has_still_does_not_come_back_from_it(tmp_path: Path) -> None:
    a, b, c = a_set(tmp_path)
    with Wheel(a) as wheel:
        first, second = (m.id for m in list(wheel.list())[:2])
        wheel.cancel(first)
        bring_in_step(a, b)
        wheel.cancel(second)
    promote(b)
    assert payloads(b) == [b"2"]
    assert payloads(c) == [b"0", b"1", b"2"]
    with Replicator(b) as replicator:
        report = next(r for r in replicator.once() if r.path == c)
    assert (report.error, report.returned) == ("", 0)
    assert payloads(b) == payloads(c) == [b"2"]


def test_what_was_cancelled_before_the_promoted_wheel_had_it_does_not_come_back_from_a_backup_that_had(
    tmp_path: Path,
) -> None:
    a, b, c = a_set(tmp_path)
    with Wheel(a) as wheel:
        id_ = wheel.enqueue(b"cancelled", delay=86_400)
        bring_in_step(a, c)
        wheel.cancel(id_)
        bring_in_step(a, b)  # it gets both at once, and deals neither: no file of it reaches so far
        bring_in_step(a, b)  # a journal goes with the deal after its writer's end
    promote(b)
    assert payloads(c) == [b"0", b"1", b"2", b"cancelled"]
    with Replicator(b) as replicator:
        report = next(r for r in replicator.once() if r.path == c)
    assert (report.error, report.returned) == ("", 0)
    assert payloads(b) == payloads(c) == [b"0", b"1", b"2"]


def test_what_was_cancelled_in_a_primary_that_rejoins_does_not_come_back_from_a_backup_that_had_it(
    tmp_path: Path,
) -> None:
    a, b, c = a_set(tmp_path)
    with Wheel(a) as wheel:
        id_ = wheel.enqueue(b"cancelled", delay=3600)
        bring_in_step(a, c)
        wheel.cancel(id_)
    (tmp_path / "a").rename(tmp_path / "lost")
    promote(b)  # which never hears of either
    (tmp_path / "lost").rename(tmp_path / "a")
    assert rejoin(a).dropped == 0
    assert payloads(c) == [b"0", b"1", b"2", b"cancelled"]
    with Replicator(b) as replicator:
        assert [(r.error, r.returned) for r in replicator.once()] == [("", 0), ("", 0)]
    assert payloads(a) == payloads(b) == payloads(c) == [b"0", b"1", b"2"]


def test_what_a_slot_of_the_promoted_wheel_remembers_as_cancelled_is_given_to_no_other_backup(tmp_path: Path) -> None:
    a, b, c = a_set(tmp_path)
    d = str(tmp_path / "d")
    add_backup(a, d)
    bring_in_step(a, d)
    with Wheel(a) as wheel:
        id_ = wheel.enqueue(b"cancelled", delay=3600)
        bring_in_step(a, b)
        bring_in_step(a, c)
        wheel.cancel(id_)
        bring_in_step(a, b)
        bring_in_step(a, b)  # a journal goes with the deal after its writer's end
    (tmp_path / "a").rename(tmp_path / "lost")
    promote(b)
    link = link_to(b, d)  # `d` never had the message, and would take it for a new one
    link.catch_up(lambda: time.sleep(0.02))
    bring_in_step(b, c)
    link.catch_up(lambda: time.sleep(0.02))
    link.close()
    assert payloads(b) == payloads(c) == payloads(d) == [b"0", b"1", b"2"]


def test_what_a_slot_of_the_promoted_wheel_remembers_as_cancelled_is_no_dead_letter_when_its_key_is_taken(
    tmp_path: Path,
) -> None:
    a, b, c = a_set(tmp_path)
    with Wheel(a) as wheel:
        id_ = wheel.enqueue(b"cancelled", delay=3600, key="k")
        bring_in_step(a, b)
        bring_in_step(a, c)
        wheel.cancel(id_)
        bring_in_step(a, b)
        bring_in_step(a, b)  # a journal goes with the deal after its writer's end
    (tmp_path / "a").rename(tmp_path / "lost")
    promote(b)
    with Wheel(b) as wheel:
        wheel.enqueue(b"another", delay=3600, key="k")
    with Replicator(b) as replicator:
        report = next(r for r in replicator.once() if r.path == c)
    assert (report.error, report.returned) == ("", 0)
    for path in (b, c):
        assert payloads(path) == [b"0", b"1", b"2", b"another"]
        with Wheel(path) as wheel:
            assert list(wheel.list(dead=True)) == []


def test_what_a_slot_of_another_backup_remembers_as_cancelled_ends_in_the_promoted_wheel(tmp_path: Path) -> None:
    a, b, c = a_set(tmp_path)
    with Wheel(a) as wheel:
        id_ = wheel.enqueue(b"cancelled", delay=3600)
        bring_in_step(a, b)
        bring_in_step(a, c)
        wheel.cancel(id_)
        bring_in_step(a, c)
        bring_in_step(a, c)  # a journal goes with the deal after its writer's end
    (tmp_path / "a").rename(tmp_path / "lost")
    promote(b)
    assert b"cancelled" in payloads(b)
    with Replicator(b) as replicator:
        report = next(r for r in replicator.once() if r.path == c)
    assert (report.error, report.returned) == ("", 0)
    assert payloads(b) == payloads(c) == [b"0", b"1", b"2"]


def test_a_keyed_message_that_another_backup_dealt_as_moved_is_there_once_and_at_its_new_time(tmp_path: Path) -> None:
    a, b, c = a_set(tmp_path)
    with Wheel(a) as wheel:
        wheel.enqueue(b"moved", delay=3600, key="k")
        bring_in_step(a, b)
        bring_in_step(a, c)
        moved = wheel.reschedule(key="k", delay=7200)
        bring_in_step(a, c)
        bring_in_step(a, c)  # a journal goes with the deal after its writer's end
    (tmp_path / "a").rename(tmp_path / "lost")
    promote(b)
    with Replicator(b) as replicator:
        report = next(r for r in replicator.once() if r.path == c)
    assert (report.error, report.returned) == ("", 1)
    for path in (b, c):
        assert payloads(path) == [b"0", b"1", b"2", b"moved"]
        with Wheel(path) as wheel:
            assert [m.id for m in wheel.list() if m.payload == b"moved"] == [moved]
            assert list(wheel.list(dead=True)) == []
