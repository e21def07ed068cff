"""Room comes back: a file of which more than half is dropped is dealt anew, and the old one is removed whole."""

from __future__ import annotations

import json
import random
import shutil
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from filewheel import Keeper, MessageId, Wheel
from filewheel.disk.checkpoint import Checkpoint
from filewheel.disk.directory import open_directory
from filewheel.laps import deal as deal_module
from filewheel.laps import lap_writer
from filewheel.laps.deal import Deal, is_worn
from filewheel.laps.window import Budget, Window
from filewheel.lookup.snapshot import Snapshot
from filewheel.lookup.stats import Counter
from filewheel.message import DEAD_US, US_PER_S, to_datetime
from filewheel.tools.repair import repair
from filewheel.tools.verify import verify
from tests.conftest import assert_whole
from tests.support import REPO, FakeClock, seeds, timed

DAY_S = 86_400
BLOCK = 4096


class Stage:
    """A wheel, a keeper that deals when it is told to, and a producer."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.clock = FakeClock()
        Wheel.create(path, clock=self.clock).close()
        self.wheel = Wheel(path, clock=self.clock)
        self.keeper = Keeper(path, clock=self.clock, background=False)

    def deal(self, times: int = 1) -> None:
        for _ in range(times):
            Deal(self.keeper._store, spread=True, finished=self.keeper._head.finished).run()

    def reopen(self) -> None:
        self.keeper.close()
        self.keeper = Keeper(self.path, clock=self.clock, background=False)

    def close(self) -> None:
        self.wheel.close()
        self.keeper.close()

    def fire(self) -> list[bytes]:
        fired = []
        while batch := self.keeper.claim():
            fired += [m.payload for m in batch]
            self.keeper.ack(batch)
        return fired

    @property
    def checkpoint(self) -> Checkpoint:
        return open_directory(self.path, write=False).checkpoint()

    def files(self) -> dict[str, int]:
        """The lap and slot files that are there, and their sizes."""
        return {str(p.relative_to(self.path)): p.stat().st_size for p in self.path.glob("laps/**/*.*")}

    def pending(self) -> list[bytes]:
        with Wheel(self.path, clock=self.clock) as wheel:
            return [m.payload for m in wheel.list()]


@pytest.fixture
def stage(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Stage]:
    made = Stage(tmp_path / "jobs.wheel")
    yield made
    made.close()
    if request.node.get_closest_marker("damages") is None:
        assert_whole(made.path)


def far(stage: Stage, payloads: list[bytes], delay: float = 300 * DAY_S) -> list[MessageId]:
    """Enqueue messages that are due in one far lap, and deal them."""
    at = (stage.clock.now_us() // US_PER_S + delay) // 900 * 900
    delays = [at + n * 900 // len(payloads) - stage.clock.now_us() / US_PER_S for n in range(len(payloads))]
    ids = list(stage.wheel.enqueue_many(payloads, delay=delays, sync="never"))
    stage.deal()
    return ids


def test_a_lap_of_which_more_than_half_is_cancelled_is_dealt_anew_and_the_old_file_goes(stage: Stage) -> None:
    ids = far(stage, [b"%04d" % n * 50 for n in range(1000)])
    (old,) = stage.files()
    stage.wheel.cancel_many(ids[:400])
    stage.deal(3)
    assert list(stage.files()) == [old], "less than half"
    stage.wheel.cancel_many(ids[400:600])
    stage.deal(2)
    ((new, size),) = stage.files().items()
    assert new != old
    assert size < 400 * 300
    assert stage.pending() == [b"%04d" % n * 50 for n in range(600, 1000)]
    assert not any(is_worn(covered) for covered in stage.checkpoint.laps.values())
    stage.deal(3)
    assert list(stage.files()) == [new], "once"


def test_a_lap_of_which_everything_is_cancelled_goes_though_it_is_due_in_a_year(stage: Stage) -> None:
    ids = far(stage, [bytes(100)] * 5000)
    stage.wheel.cancel_many(ids)
    stage.deal(2)
    assert stage.files() == {}
    assert stage.checkpoint.laps == {}
    assert stage.wheel.enqueue(b"late", at=to_datetime(ids[7].due_us))
    stage.deal()
    assert stage.pending() == [b"late"]


def test_the_bytes_decide_not_the_number_of_messages(stage: Stage) -> None:
    ids = far(stage, [b"small"] * 500 + [bytes(200_000)] + [b"small"] * 500)
    (old,) = stage.files()
    stage.wheel.cancel(ids[500])
    stage.deal(2)
    ((new, size),) = stage.files().items()
    assert new != old
    assert size < 100_000


def test_what_is_enqueued_and_cancelled_in_the_deal_that_deals_a_lap_anew_is_taken_along(stage: Stage) -> None:
    ids = far(stage, [b"%03d" % n * 100 for n in range(100)])
    stage.wheel.cancel_many(ids[:60])
    stage.deal()
    stage.wheel.cancel_many(ids[60:80])
    stage.wheel.enqueue(b"new", at=to_datetime(ids[90].due_us))
    stage.wheel.cancel(stage.wheel.enqueue(b"gone", at=to_datetime(ids[90].due_us)))
    stage.deal()
    kept = {b"%03d" % n * 100 for n in range(80, 100)} | {b"new"}
    assert set(stage.pending()) == kept
    data = b"".join((stage.path / name).read_bytes() for name in stage.files())
    assert b"070" * 100 not in data
    stage.reopen()
    assert set(stage.pending()) == kept


def test_a_large_lap_is_dealt_anew_within_bounded_memory(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    window = lap_writer.read_window

    def seen(*args: Any, **named: Any) -> Window:
        found = window(*args, **named)
        read.append(len(found.found))
        return found

    monkeypatch.setattr(lap_writer, "_ANEW_BUDGET", Budget(records=2000))
    monkeypatch.setattr(lap_writer, "read_window", seen)
    ids = far(stage, [bytes(1000)] * 60_000)
    stage.deal(3)
    stage.wheel.cancel_many(ids[::2])
    stage.wheel.cancel_many(ids[1::4])
    stage.deal(6)
    assert sum(read) == 15_000
    assert max(read) <= 2000
    assert len(stage.pending()) == 15_000


def test_a_deal_deals_so_much_anew_and_the_next_one_the_rest(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deal_module, "ANEW_BYTES", 20_000)
    laps = [far(stage, [bytes(100)] * 100, (100 + n) * DAY_S) for n in range(5)]
    stage.wheel.cancel_many([id_ for ids in laps for id_ in ids])
    stage.deal()
    left = [len(stage.files()) for _ in range(6) if not stage.deal()]
    assert left == [3, 1, 0, 0, 0, 0]


def test_dropped_dead_letters_give_their_room_back(stage: Stage) -> None:
    for _ in range(4):
        stage.wheel.enqueue_many([bytes(500)] * 500)
        stage.clock.advance(1)
        for message in (batch := stage.keeper.claim(500)):
            stage.keeper.bury(message, reason="no such address")
        assert len(batch) == 500
        stage.deal(2)
        dead = list(stage.wheel.dead())
        stage.wheel.cancel_many([m.id for m in dead])
        stage.deal(3)
    assert stage.files() == {}


def test_a_second_in_which_one_message_is_held_by_a_pause_gives_the_room_of_the_others_back(stage: Stage) -> None:
    stage.wheel.enqueue_many([bytes(100)] * 2000, delay=5)
    stage.wheel.enqueue(b"held", delay=5, topic="later")
    stage.deal()
    (old,) = stage.files()
    stage.wheel.pause(topic="later")
    stage.clock.advance(10)
    assert len(stage.fire()) == 2000
    stage.deal(2)
    ((new, size),) = stage.files().items()
    assert new != old
    assert size < 300
    stage.wheel.resume(topic="later")
    assert stage.fire() == [b"held"]
    stage.deal(2)
    assert stage.files() == {}


def test_a_reader_that_has_the_checkpoint_before_finds_what_it_names_in_the_new_file(stage: Stage) -> None:
    ids = far(stage, [b"%04d" % n * 50 for n in range(1000)])
    stage.wheel.cancel_many(ids[:600])
    stage.deal()
    with Snapshot(timed(open_directory(stage.path, write=False), stage.clock)) as snapshot:
        with Wheel(stage.path, clock=stage.clock) as reader:
            assert reader.stats().pending == 400  # remembered from here on
            assert reader.get(ids[700]) is not None
            stage.deal()
            assert [m.payload for m in snapshot.messages()] == [b"%04d" % n * 50 for n in range(600, 1000)]
            assert reader.get(ids[700]) is not None
            assert reader.get(ids[500]) is None
            assert [reader.stats().pending for _ in range(2)] == [400, 400]


def test_counts_of_a_snapshot_are_right_though_a_file_is_dealt_anew_before_it_is_counted(stage: Stage) -> None:
    ids = far(stage, [b"%04d" % n * 50 for n in range(1000)])
    directory = timed(open_directory(stage.path, write=False), stage.clock)
    with Snapshot(directory) as snapshot:
        stage.wheel.cancel_many(ids[:600])
        stage.deal(2)
        assert Counter(directory, snapshot).count()[0] == 400


def test_where_a_message_may_be_put_twice_its_drop_stays_for_the_other_put(stage: Stage) -> None:
    stage.keeper._store.note_repeats()
    ids = far(stage, [bytes(100)] * 300)
    stage.wheel.cancel_many(ids[:200])
    stage.deal(3)
    with Snapshot(open_directory(stage.path, write=False)) as snapshot:
        assert snapshot.dropped(ids) == set(ids[:200])
    (name,) = stage.files()
    assert len(stage.pending()) == 100
    stage.wheel.cancel_many(ids[200:])
    stage.deal(3)
    (kept,) = stage.files()
    assert kept != name
    with Snapshot(open_directory(stage.path, write=False)) as snapshot:
        assert snapshot.dropped(ids) == set(ids)
    size = stage.files()[kept]
    stage.deal(4)
    assert stage.files() == {kept: size}, "once"


@pytest.mark.damages
def test_a_damaged_file_is_not_dealt_anew_and_stays_as_it_is_for_a_repair(stage: Stage) -> None:
    ids = far(stage, [b"%04d" % n * 50 for n in range(1000)])
    (name,) = stage.files()
    stage.wheel.cancel_many(ids[:900])
    stage.deal()
    data = bytearray((stage.path / name).read_bytes())
    data[len(data) // 3] ^= 1
    (stage.path / name).write_bytes(data)
    stage.deal(4)
    assert list(stage.files()) == [name]
    assert verify(open_directory(stage.path, write=False)).damage
    stage.close()
    repair(timed(open_directory(stage.path, write=True), stage.clock))
    assert name not in stage.files()
    assert not verify(open_directory(stage.path, write=False)).damage
    assert set(stage.pending()) <= {b"%04d" % n * 50 for n in range(900, 1000)}


def test_a_file_that_is_missing_is_not_dealt_anew(stage: Stage) -> None:
    ids = far(stage, [bytes(100)] * 300)
    stage.wheel.cancel_many(ids[:250])
    stage.deal()
    (name,) = stage.files()
    (stage.path / name).rename(stage.path / "elsewhere")
    stage.deal(2)
    (lap,) = stage.checkpoint.laps
    (stage.path / "elsewhere").rename(stage.path / name)
    stage.keeper._store.look_for_missing()
    stage.deal(2)
    assert stage.checkpoint.laps.keys() == {lap}
    assert len(stage.pending()) == 50
    for item in (stage.path / "quarantine").iterdir():
        item.unlink()


def test_without_a_checkpoint_all_files_of_a_lap_count_and_the_next_deal_makes_one_of_them(stage: Stage) -> None:
    ids = far(stage, [b"%04d" % n * 50 for n in range(1000)])
    (old,) = stage.files()
    data = (stage.path / old).read_bytes()
    stage.wheel.cancel_many(ids[:600])
    stage.deal(2)
    later = stage.wheel.enqueue(b"later", at=to_datetime(ids[0].due_us))
    stage.deal()
    stage.wheel.close()
    stage.keeper.close()
    (new,) = stage.files()
    (stage.path / old).write_bytes(data)  # a power cut brought it back, and the checkpoints were damaged
    for name in ("checkpoint", "checkpoint.old"):
        (stage.path / name).write_bytes(b"")
    kept = {b"%04d" % n * 50 for n in range(600, 1000)} | {b"later"}
    assert kept <= set(stage.pending())
    with Wheel(stage.path, clock=stage.clock) as wheel:
        assert wheel.get(later) is not None
    stage.keeper = Keeper(stage.path, clock=stage.clock, background=False)
    stage.deal()
    (one,) = stage.files()
    assert one not in (old, new)
    assert kept <= set(stage.pending())
    assert stage.checkpoint.deal > 1000
    stage.reopen()
    assert kept <= set(stage.pending())


def test_the_first_deal_in_a_wheel_of_format_1_raises_the_number_before_anything_has_a_new_name(tmp_path: Path) -> None:
    path = tmp_path / "w"
    shutil.copytree(REPO / "data/golden/v1", path)
    (path / "expected.jsonl").unlink()
    path.chmod(0o700)
    clock = FakeClock()
    clock.step(1_800_000_000 - clock.now_us() / US_PER_S)
    with Wheel(path, clock=clock) as wheel:
        before = [(m.id, m.payload) for m in wheel.list()]
        assert json.loads((path / "wheel.json").read_bytes())["format"] == 1
    keeper = Keeper(path, clock=clock, background=False)
    assert json.loads((path / "wheel.json").read_bytes())["format"] == 1
    Deal(keeper._store, spread=True).run()
    for name in ("wheel.json", "wheel.json.copy"):
        assert json.loads((path / name).read_bytes())["format"] == 2
    keeper.close()
    with Wheel(path, clock=clock) as wheel:
        assert [(m.id, m.payload) for m in wheel.list()] == before
    names = [p.name for p in path.glob("laps/**/*.*")]
    assert names
    assert all("-" in name for name in names), "what may be dropped in it is not known, so each is dealt anew"
    assert not verify(open_directory(path, write=False)).damage


def test_a_wheel_of_0_1_0_is_dealt_anew_without_a_loss(tmp_path: Path) -> None:
    with tarfile.open(REPO / "data/older/wheel-0.1.0.tar.gz") as tar:
        tar.extractall(tmp_path, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
    path = tmp_path / "w"
    path.chmod(0o700)
    with Wheel(path) as wheel:
        before = {m.id for m in (*wheel.list(), *wheel.list(dead=True))}
    with Keeper(path, background=False, on_jump="hold") as keeper:
        for _ in range(3):
            Deal(keeper._store, spread=False).run()
    with Wheel(path) as wheel:
        assert {m.id for m in (*wheel.list(), *wheel.list(dead=True))} == before
    assert_whole(path)


def blocks(path: Path) -> int:
    """Return the room that the files of a directory take, in whole blocks."""
    return sum(-(-p.stat().st_size // BLOCK) * BLOCK for p in path.rglob("*") if p.is_file())


@pytest.mark.parametrize("what", ["replaces", "cancels", "dead letters"])
def test_after_weeks_the_laps_take_at_most_twice_the_room_of_what_is_pending_and_one_deal(
    stage: Stage, what: str, tmp_path: Path
) -> None:
    """The bound, at the end of each fifth day. A wheel into which the same was loaded says what is needed."""
    rng = random.Random(what)
    act = {"replaces": replace_some, "cancels": cancel_some, "dead letters": bury_some}[what]
    worst = 0.0
    for day in seeds(15, all_of=30):
        for _ in range(4):
            act(stage, rng)
            stage.clock.advance(DAY_S / 4)
            stage.fire()
            stage.deal(2)
        if day % 5 == 4:
            room = blocks(stage.path / "laps")
            need = needed(stage, tmp_path / f"fresh{day}")
            one_deal = 300 * 400
            worst = max(worst, (room - one_deal) / max(1, need))
            assert room <= 2 * need + one_deal, f"day {day}: {room} for {need}"
    assert worst <= 2


def needed(stage: Stage, path: Path) -> int:
    """Return the room that the pending messages of a wheel take in a new one."""
    Wheel.create(path, clock=stage.clock).close()
    with Wheel(path, clock=stage.clock) as wheel:
        wheel.add([*stage.wheel.list(), *stage.wheel.list(dead=True)])
    with Keeper(path, clock=stage.clock, background=False) as keeper:
        Deal(keeper._store, spread=True).run()
    found = blocks(path / "laps")
    shutil.rmtree(path)
    return found


def replace_some(stage: Stage, rng: random.Random) -> None:
    for _ in range(40):
        key = f"user {rng.randrange(60)}"
        delay = 3 * DAY_S if rng.random() < 0.1 else rng.choice([40, 200, 400]) * DAY_S + rng.randrange(3 * 900)
        stage.wheel.enqueue(
            rng.randbytes(rng.choice([20, 300, 3000])), delay=delay, key=key, on_conflict="replace", sync="never"
        )


def cancel_some(stage: Stage, rng: random.Random) -> None:
    kept = far(stage, [rng.randbytes(rng.randrange(600)) for _ in range(300)], rng.choice([90, 180, 360]) * DAY_S)
    rng.shuffle(kept)
    stage.wheel.cancel_many(kept[: rng.randrange(250, 300)])


def bury_some(stage: Stage, rng: random.Random) -> None:
    stage.wheel.enqueue_many([rng.randbytes(rng.randrange(600)) for _ in range(300)])
    stage.clock.advance(1)
    for message in stage.keeper.claim(300):
        stage.keeper.bury(message, reason="no such address")
    dead = [m.id for m in stage.wheel.dead()]
    assert all(id_.due_us >= DEAD_US for id_ in dead)
    rng.shuffle(dead)
    stage.wheel.cancel_many(dead[rng.randrange(40) :])
