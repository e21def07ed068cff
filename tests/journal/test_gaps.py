"""Damage in front of frames of which `synced` is behind: any later frame proves it, not the next alone."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from filewheel import Keeper, Wheel
from filewheel.disk.directory import open_directory
from filewheel.disk.disk import SYSTEM, OsDisk
from filewheel.disk.quarantine import Damage, items
from filewheel.format.frame import Frame, Gap
from filewheel.format.record import pack_tail
from filewheel.journal.gaps import UNKNOWN, Account, Judge
from filewheel.journal.journal import Journal
from filewheel.journal.tail import Handles, Tail
from filewheel.laps.store import LOCK_TEST_US
from filewheel.lookup.snapshot import Snapshot
from filewheel.tools.verify import Report, verify
from tests import support_reader
from tests.conftest import assert_whole
from tests.support import START_US, FakeClock, FaultyDisk, eventually

pytestmark = pytest.mark.damages


def segments(path: Path) -> list[Path]:
    return sorted(path.glob("journal/*.log"))


def frames_in(path: Path, segment: Path) -> list[support_reader.Frame]:
    """The frames of a segment, read by the reader that shares no code with the library."""
    salt = bytes.fromhex(support_reader.settings((path / "wheel.json").read_bytes())["salt"])
    data = segment.read_bytes()
    return support_reader.frames(data, 0, len(data), support_reader.seed_of(salt, f"journal/{segment.name}"))[0]


def flip(path: Path, at: int) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        (byte,) = file.read(1)
        file.seek(at)
        file.write(bytes([byte ^ 1]))


def hit(path: Path, number: int) -> None:
    """Flip a bit in the body of the frame of this number, in whatever segment it is."""
    for segment in segments(path):
        for frame in frames_in(path, segment):
            if frame.number == number and frame.puts:
                flip(segment, frame.at + 80)
                return
    raise AssertionError(number)


def look(path: Path, clock: FakeClock) -> Report:
    return verify(open_directory(path, write=False))


def fire(keeper: Keeper) -> list[bytes]:
    fired = []
    while batch := keeper.claim():
        fired += [m.payload for m in batch]
        keeper.ack(batch)
    return fired


def assert_kept_as_damage(path: Path, fired: list[bytes], expected: list[bytes], clock: FakeClock) -> None:
    """What was hit is in quarantine as proven damage, everything else fired, and the wheel is whole then."""
    assert fired == expected
    (item,) = items(open_directory(path, write=False))
    assert item["proven"] is True
    assert not look(path, clock).damage


def test_one_flipped_bit_among_the_commits_of_eight_threads_is_damage_and_costs_one_message(wheel_dir: Path) -> None:
    clock = FakeClock()
    behind: list[int] = []

    def flush_late(kind: str, name: str) -> None:
        """Once, let a flush wait until a second frame is behind the first that it makes durable."""
        if kind == "fdatasync" and not behind:
            for segment in segments(wheel_dir):
                if len(frames_in(wheel_dir, segment)) > 40:
                    behind.append(eventually(lambda path=segment: number_behind(path)))

    def number_behind(segment: Path) -> int:
        return next((f.number for f in frames_in(wheel_dir, segment)[40:] if f.synced < f.number - 1), 0)

    env = SYSTEM.using(clock=clock, disk=lambda p: FaultyDisk(p, flush_late))
    with Wheel(wheel_dir, env=env) as wheel:
        threads = [
            threading.Thread(target=lambda t=t: [wheel.enqueue(b"%d.%d" % (t, i), delay=0) for i in range(20)])
            for t in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    hit(wheel_dir, behind[0] - 1)
    (finding,) = look(wheel_dir, clock).damage
    assert "had been durable, cannot be read" in finding.what
    keeper = Keeper(wheel_dir, clock=clock, background=False)
    fired = fire(keeper)
    keeper.close()
    assert_kept_as_damage(wheel_dir, sorted(fired), sorted(set(fired)), clock)
    assert len(fired) == 159


@pytest.mark.parametrize("sync", ["never", 5.0])
def test_a_flipped_bit_in_a_sealed_journal_is_damage_however_seldom_it_was_flushed(
    wheel_dir: Path, sync: float | str
) -> None:
    clock = FakeClock()
    with Wheel(wheel_dir, clock=clock) as wheel:
        for i in range(5):
            wheel.enqueue(b"%d" % i, delay=0, sync=sync)  # type: ignore[arg-type]
    hit(wheel_dir, 3)
    assert [f.what for f in look(wheel_dir, clock).damage] == ["frames 3 to 3, which had been durable, cannot be read"]
    with Wheel(wheel_dir, clock=clock) as wheel, wheel.snapshot() as snapshot:
        assert [m.payload for m in snapshot.messages()] == [b"0", b"1", b"3", b"4"]
        assert [d.proven for d in snapshot.damage] == [True]
    keeper = Keeper(wheel_dir, clock=clock, background=False)
    fired = fire(keeper)
    keeper.close()
    assert_kept_as_damage(wheel_dir, fired, [b"0", b"1", b"3", b"4"], clock)


def test_a_keeper_steps_over_proven_damage_though_the_writer_lives_and_fires_what_is_enqueued_later(
    wheel_dir: Path,
) -> None:
    clock = FakeClock()
    with Wheel(wheel_dir, clock=clock) as wheel:
        for i in range(6):
            wheel.enqueue(b"%d" % i, delay=0, sync="never")
        hit(wheel_dir, 3)
        keeper = Keeper(wheel_dir, clock=clock, background=False)
        # Nothing says yet that frame 3 had been durable: it might be in the middle of being written.
        assert fire(keeper) == [b"0", b"1"]
        assert not items(open_directory(wheel_dir, write=False))
        wheel.enqueue(b"6", delay=0, sync="always")
        wheel.enqueue(b"7", delay=0, sync="never")  # the first that says so
        clock.advance(LOCK_TEST_US / 1e6)
        fired = fire(keeper)
        assert [f.what for f in look(wheel_dir, clock).damage] == [
            "frames 3 to 3, which had been durable, cannot be read"
        ]
        keeper.close()
    assert_kept_as_damage(wheel_dir, fired, [b"3", b"4", b"5", b"6", b"7"], clock)


def test_what_nothing_proves_is_kept_aside_as_a_note_when_the_writer_has_gone(wheel_dir: Path) -> None:
    clock = FakeClock()
    journal = Journal(open_directory(wheel_dir, write=True))
    for i in range(4):
        journal.put(START_US, START_US, pack_tail("", None), b"%d" % i, sync="never")
    hit(wheel_dir, 2)
    assert journal.position.number == 4
    journal.appender.lender.writer.release()  # killed
    report = look(wheel_dir, clock)
    assert not report.damage
    assert "perhaps commits that never completed" in report.findings[0].what
    with Wheel(wheel_dir, clock=clock) as wheel, wheel.snapshot() as snapshot:
        assert [m.payload for m in snapshot.messages()] == [b"0", b"2", b"3"]
        assert not snapshot.damage
    keeper = Keeper(wheel_dir, clock=clock, background=False)
    assert fire(keeper) == [b"0", b"2", b"3"]
    keeper.close()
    (item,) = items(open_directory(wheel_dir, write=False))
    assert (item["proven"], item["reason"]) == (False, "body checksum")
    assert not look(wheel_dir, clock).damage


def test_damage_at_the_end_of_a_segment_is_kept_before_a_frame_of_the_next_proves_it(wheel_dir: Path) -> None:
    clock = FakeClock()
    directory = open_directory(wheel_dir, write=True)
    journal = Journal(directory, fill_bytes=0)
    for i in range(3):
        journal.put(START_US, START_US, pack_tail("", None), b"%d" % i)
    journal.rotate()
    hit(wheel_dir, 3)
    first = segments(wheel_dir)[0]
    last = next(f for f in frames_in(wheel_dir, first) if not f.puts)
    flip(first, last.at + 60)  # the seal would have proven it
    keeper = Keeper(wheel_dir, clock=clock, background=False)
    clock.advance(1)
    assert fire(keeper) == [b"0", b"1"]
    assert [i["proven"] for i in items(directory)] == [False]
    keeper._housekeeper.deal_all()
    assert not first.exists()
    journal.put(START_US, START_US, pack_tail("", None), b"3")
    clock.advance(1)
    assert fire(keeper) == [b"3"]
    (item,) = items(directory)
    assert (item["proven"], item["name"]) == (True, f"journal/{first.name}")
    assert (wheel_dir / str(item["item"]).replace(".json", ".bin")).stat().st_size > 70
    keeper.close()
    journal.close()


def test_a_follower_of_journals_reports_what_was_missing_once_it_is_proven(wheel_dir: Path) -> None:
    directory = open_directory(wheel_dir, write=True)
    journal = Journal(directory)
    for i in range(4):
        journal.put(START_US, START_US, pack_tail("", None), b"%d" % i, sync="never")
    hit(wheel_dir, 2)
    found: list[Damage] = []
    handles = Handles(directory)
    (segment,) = segments(wheel_dir)
    tail = Tail(directory, handles, segment.name[:8])

    def numbers() -> list[int]:
        listing = {int(p.name[9:15]) for p in segments(wheel_dir)}
        frames: list[Frame] = []
        tail.poll(
            listing, lambda: listing, frames.append, test_lock=True, on_damage=found.append,
            on_foreign=lambda name: None,
        )  # fmt: skip
        return [frame.number for frame in frames]

    assert numbers() == [1]
    assert numbers() == []
    journal.close()
    assert numbers() == [3, 4, 4]
    assert [d.proven for d in found] == [True]
    handles.close()


class TornLook(OsDisk):
    """A real disk of which the first look at a range shows zeros, as a look beside its writer may."""

    def __init__(self, path: str, offset: int, end: int) -> None:
        super().__init__(path)
        self.range: tuple[int, int] | None = (offset, end)
        self._journals: set[int] = set()

    def open(self, name: str, mode: str) -> int:
        fd = super().open(name, mode)
        self._journals.discard(fd)
        if name.startswith("journal/"):
            self._journals.add(fd)
        return fd

    def pread(self, fd: int, size: int, offset: int) -> bytes:
        data = super().pread(fd, size, offset)
        if (
            fd not in self._journals
            or self.range is None
            or not offset <= self.range[0] < self.range[1] <= offset + len(data)
        ):
            return data
        low, high = self.range[0] - offset, self.range[1] - offset
        self.range = None
        return data[:low] + bytes(high - low) + data[high:]


@pytest.mark.parametrize("who", ["verify", "snapshot"])
def test_a_look_of_two_moments_beside_a_writer_finds_no_damage(wheel_dir: Path, who: str) -> None:
    with Wheel(wheel_dir) as wheel:
        for i in range(3):
            wheel.enqueue(b"%d" % i, delay=60)
        frame = frames_in(wheel_dir, segments(wheel_dir)[0])[1]
        disks: list[TornLook] = []

        def disk(path: str) -> TornLook:
            disks.append(TornLook(path, frame.at + 72, frame.end))
            return disks[-1]

        directory = open_directory(wheel_dir, write=False, env=SYSTEM.using(disk=disk))
        if who == "verify":
            assert not verify(directory).damage
        else:
            with Snapshot(directory) as snapshot:
                assert len(list(snapshot.messages())) >= 2
                assert not snapshot.damage
        assert [d.range for d in disks] == [None]
    assert_whole(wheel_dir)


# -- the judgement itself ------------------------------------------------------------------------------------


def frame(number: int, synced: int, *, seal: bool = False, at: int = 800) -> Frame:
    return Frame(at, at + 80, number, synced, 0 if seal else 1, 0, bytes(16), bytes(16), b"")


GAP = Gap(80, 160, "body checksum")


@pytest.mark.parametrize(
    ("before", "behind", "verdicts"),
    [
        pytest.param(1, [frame(2, 1)], [(0, False)], id="nothing is missing"),
        pytest.param(1, [frame(3, 1)], [(1, False)], id="missing, and nothing proves it"),
        pytest.param(1, [frame(3, 2)], [(1, True)], id="the next frame proves it"),
        pytest.param(1, [frame(3, 0), frame(4, 0), frame(5, 4)], [(1, False), (1, True)], id="a later frame proves it"),
        pytest.param(1, [frame(3, 0), frame(3, 3, seal=True)], [(1, False), (1, True)], id="the seal proves it"),
        pytest.param(1, [frame(2, 2, seal=True)], [(1, True)], id="the seal follows the gap"),
        pytest.param(1, [frame(1, 1, seal=True)], [(0, False)], id="the seal follows what was never completed"),
        pytest.param(1, [frame(4, 0), frame(5, 1)], [(2, False)], id="a later frame that proves nothing"),
        pytest.param(UNKNOWN, [frame(9, 8)], [(0, False)], id="the first frame that is known"),
        pytest.param(5, [frame(3, 2)], [(0, False)], id="a number that was met before"),
    ],
)
def test_a_gap_is_judged_by_all_frames_behind_it(
    before: int, behind: list[Frame], verdicts: list[tuple[int, bool]]
) -> None:
    judge, number, told = Judge(), before, []
    judge.pass_over("x", GAP)
    for item in behind:
        told += [(m.last - m.first + 1, m.is_proven) for m in judge.take("x", item, number)]
        number = item.number
    assert told == verdicts


def test_of_several_missing_frames_only_those_count_as_durable_that_a_frame_behind_calls_so() -> None:
    account = Account()
    number = account.add("x", frame(1, 0), 0)
    for item in (GAP, frame(6, 2), frame(7, 4), frame(8, 4)):
        number = account.add("x", item, number)
    (missing,) = account.missing
    assert missing.describe() == "frames 2 to 4, which had been durable, cannot be read"


def test_frames_that_are_missing_without_a_trace_are_named_where_the_next_one_is() -> None:
    account = Account()
    account.add("x", frame(5, 4, at=240), 2)
    (missing,) = account.missing
    assert missing.damages() == [Damage("x", 240, 240, "frames 3 to 4 are missing", proven=True)]


def test_space_that_was_written_ahead_is_no_gap() -> None:
    judge = Judge()
    judge.pass_over("x", Gap(80, 1 << 20, "no frame starts here", blank=True, at_end=True))
    assert not judge.waits
    assert judge.passed() == []
