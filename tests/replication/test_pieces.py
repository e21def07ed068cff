"""The pieces of a link by themselves: chunks, bundles, bookmarks, and what is known to be whole."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest

from filewheel import MessageId
from filewheel.disk.checkpoint import Position
from filewheel.disk.directory import Directory
from filewheel.disk.disk import OsDisk
from filewheel.format.frame import scan
from filewheel.format.record import CANCELLED, ID, pack_drop, records_of
from filewheel.journal.journal import Journal
from filewheel.message import ID_END, ID_MIN
from filewheel.replication.compare import compare
from filewheel.replication.health import EVERYTHING, covers, damaged_files, items_before, items_now, ranges_of
from filewheel.replication.position import NOTE_US, Bookmark, read_follows
from filewheel.replication.shipping import Bundle
from tests.support import FakeClock, timed
from tests.support_wheel import NOW_S, a_put, an_id, make_directory


class Watched(OsDisk):
    """A disk whose first reading is told."""

    told: Callable[[], None] | None = None

    def open(self, name: str, mode: str) -> int:
        if self.told is not None:
            told, self.told = self.told, None
            told()
        return super().open(name, mode)


def write(directory: Directory, ids: list[MessageId], drops: list[MessageId] | None = None) -> None:
    journal = Journal(directory)
    journal.append([a_put(i) for i in ids] + [pack_drop(i, CANCELLED) for i in drops or []], len(ids))
    journal.close()


def test_chunks_of_any_size_say_together_what_two_wheels_do_not_have_in_common(tmp_path: Path) -> None:
    first, second = make_directory(tmp_path / "a"), make_directory(tmp_path / "b")
    ids = [an_id(NOW_S + n // 3, n) for n in range(60)]
    write(first, ids[:40], ids[:3])
    write(second, ids[20:])
    for size in (1, 2, 7, 1000):
        lo, missing, extra, count = ID_MIN, [], [], 0
        while lo != ID_END:
            chunk = compare(first, second, lo, records=size)
            assert chunk.hi > lo
            missing += [MessageId(put[ID]) for put in chunk.missing]
            extra += [MessageId(i) for i in chunk.extra]
            lo, count = chunk.hi, count + chunk.count
        assert (missing, extra, count) == (ids[3:20], ids[40:], 37)


def test_what_comes_to_both_wheels_while_they_are_compared_is_never_too_much(tmp_path: Path) -> None:
    first, second = make_directory(tmp_path / "a"), make_directory(tmp_path / "b")
    write(first, [an_id(NOW_S)])
    write(second, [an_id(NOW_S)])
    watched = [Directory(d.path, Watched(d.path), d.settings) for d in (first, second)]
    seen: list[int] = []

    def told(which: int) -> Callable[[], None]:
        def act() -> None:
            seen.append(which)
            if len(seen) == 2:  # one was read, and the other is read now
                write(first, [an_id(NOW_S, 1)])
                write(second, [an_id(NOW_S, 1)])

        return act

    for which, directory in enumerate(watched):
        assert isinstance(directory.disk, Watched)
        directory.disk.told = told(which)
    chunk = compare(*watched, ID_MIN)
    assert chunk.extra == []
    assert [put[ID] for put in chunk.missing] == [an_id(NOW_S, 1)]


def test_a_bundle_keeps_frames_whole_and_in_their_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("filewheel.replication.shipping.BUNDLE_BYTES", 300)
    directory = make_directory(tmp_path / "a")
    journal = Journal(directory)
    ids = [an_id(NOW_S, n) for n in range(40)]
    bundle = Bundle(journal)
    for old, new in itertools.pairwise(ids):
        bundle.add_records([a_put(new)], [pack_drop(old, CANCELLED)])
    bundle.add_records([], [])
    bundle.write()
    bundle.write()
    assert bundle.records == 78
    journal.flush()
    name = f"journal/{journal.writer}-000001.log"
    fd = directory.disk.open(name, "r")
    frames = list(scan(directory.disk, fd, 0, journal.position.offset, directory.seed(name)))
    assert len(frames) > 5
    moved = 0
    for frame in frames:
        puts, drops = records_of(frame)  # type: ignore[arg-type]
        assert [p[ID] for p in puts] == ids[moved + 1 : moved + 1 + len(puts)]
        assert [d[ID] for d in drops] == ids[moved : moved + len(puts)]
        moved += len(puts)
    assert moved == 39
    journal.close()


def test_a_bookmark_waits_for_its_time_and_for_all_that_is_below_it(tmp_path: Path) -> None:
    source, target = make_directory(tmp_path / "a"), make_directory(tmp_path / "b")
    source = timed(source, FakeClock())
    bookmark = Bookmark(source, target, 1, "boot")
    first, second = {"WRTR0001": Position(1, 80, 1)}, {"WRTR0001": Position(1, 160, 2)}

    def note(positions: dict[str, Position], now_us: int, owed_us: int | None, at_once: bool = False) -> None:
        bookmark.note(positions, 0, now_us, owed_us=owed_us, in_step_us=None, at_once=at_once, clean=at_once)

    note(first, NOTE_US - 1, None)
    assert bookmark.positions == {}
    note(second, NOTE_US, None)
    assert bookmark.positions == first, "the place that was noted first is the one that waits"
    note(second, 2 * NOTE_US, 2 * NOTE_US)
    note(second, 3 * NOTE_US, 2 * NOTE_US)
    assert bookmark.positions == first
    note(second, 4 * NOTE_US, 2 * NOTE_US + 1)
    assert bookmark.positions == second


@pytest.mark.parametrize("what", ["nothing", "boot", "overflow", "unreadable overflow", "wheel", "forgotten"])
def test_a_place_is_gone_on_from_only_if_nothing_can_have_been_missed(tmp_path: Path, what: str) -> None:
    source, target, other = (make_directory(tmp_path / name) for name in "abc")
    object.__setattr__(other.settings, "id", "f" * 32)
    source, other = timed(source, FakeClock()), timed(other, FakeClock())
    positions = {"WRTR0001": Position(1, 80, 1)}
    before = Bookmark(source, target, 1, "boot")
    overflow = -7 if what == "unreadable overflow" else 3
    before.note(positions, overflow, 0, owed_us=None, in_step_us=5, at_once=True, clean=True)
    if what == "forgotten":
        before.forget()
    now = Bookmark(
        other if what == "wheel" else source, target, 1, "later" if what == "boot" else "boot"
    )  # fmt: skip
    found = now.go_on(4 if what == "overflow" else overflow)
    assert found == (what == "nothing")
    assert now.positions == (positions if found else {})
    assert (now.in_step_us == 5) == (what != "wheel")


def test_a_place_that_was_left_in_order_is_such_a_one_once(tmp_path: Path) -> None:
    source, target = make_directory(tmp_path / "a"), make_directory(tmp_path / "b")
    source = timed(source, FakeClock())
    Bookmark(source, target, 1, "boot").note({}, 0, 0, owed_us=None, in_step_us=5, at_once=True, clean=True)
    assert Bookmark(source, target, 1, "boot").go_on(0, clean=True)
    found = read_follows(target.disk, target.path)
    assert found is not None
    assert not found.clean
    assert not Bookmark(source, target, 1, "boot").go_on(0, clean=True)
    assert Bookmark(source, target, 1, "boot").go_on(0)


def test_items_of_the_quarantine_are_known_by_their_time_and_concern_the_file_that_they_name(tmp_path: Path) -> None:
    directory = make_directory(tmp_path / "a")
    aside = Path(directory.path) / "quarantine"
    for stem, name, found in (
        ("old", f"laps/0/{NOW_S}.slot", "2027-01-15T08:00:00+00:00"),
        ("new", f"laps/0/{NOW_S + 1}.slot", "2027-01-15T08:00:01.500000+00:00"),
    ):
        (aside / f"{stem}.json").write_text(f'{{"name": "{name}", "found": "{found}"}}')
    known = items_before(directory, (NOW_S + 1) * 1_000_000)
    assert known == {"quarantine/old.json"}
    assert items_now(directory) == {"quarantine/old.json", "quarantine/new.json"}
    ranges = ranges_of(directory, damaged_files(directory, known, []))
    assert [covers(ranges, an_id(NOW_S + n)) for n in range(3)] == [False, True, False]
    ranges = ranges_of(directory, damaged_files(directory, items_now(directory), [f"laps/{NOW_S // 60}.lap"]))
    assert [covers(ranges, an_id(NOW_S + n)) for n in (-1, 0, 59, 60)] == [False, True, True, False]
    assert ranges_of(directory, damaged_files(directory, items_now(directory), ["journal/WRTR0001-000001.log"])) == [
        EVERYTHING
    ]
