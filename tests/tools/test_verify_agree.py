"""One judgement of damage: every command that reads a wheel says the same of it, by its exit code too."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from filewheel import Keeper, Wheel
from filewheel.disk.directory import open_directory
from filewheel.disk.disk import SYSTEM
from filewheel.format.frame import HEADER_BYTES
from filewheel.message import DEAD_US
from filewheel.tools.repair import repair
from filewheel.tools.verify import verify
from tests.cli.support import invoke
from tests.support import FakeClock, timed

pytestmark = pytest.mark.damages
CLOCK = FakeClock()


def segment(path: Path) -> Path:
    (found,) = path.glob("journal/*.log")
    return found


def flip(place: Path, at: int) -> None:
    data = bytearray(place.read_bytes())
    data[at] ^= 1
    place.write_bytes(data)


def frame_starts(data: bytes) -> list[int]:
    return [at for at in range(0, len(data), 8) if data[at : at + 4] == b"\xf5FW1"]


def torn_tail(path: Path) -> None:
    """What a power cut leaves most often: a header and half of its body, and the zeros that were written ahead."""
    data = segment(path).read_bytes().rstrip(b"\0")
    *_, last, seal = frame_starts(data)
    size = int.from_bytes(data[last + 8 : last + 12], "little")
    segment(path).write_bytes(data[: last + HEADER_BYTES + size // 2] + bytes(4096 + seal - last))


def unproven_gap(path: Path) -> None:
    """A commit that never completed in front of one that did: no frame behind it calls it durable, and no seal."""
    data = segment(path).read_bytes().rstrip(b"\0")
    _, second, *_, seal = frame_starts(data)
    segment(path).write_bytes(data[: second + 80] + b"\xff" + data[second + 81 : seal] + bytes(4096))


def lagging_gap(path: Path) -> None:
    flip(segment(path), frame_starts(segment(path).read_bytes())[1] + 80)


def dealt_file(path: Path) -> None:
    Keeper(path, background=False, clock=CLOCK).close()
    flip(next(path.glob("laps/**/*.*")), 90)


def missing_file(path: Path) -> None:
    Keeper(path, background=False, clock=CLOCK).close()
    next(path.glob("laps/**/*.*")).unlink()


def checkpoint(path: Path) -> None:
    Keeper(path, background=False, clock=CLOCK).close()
    flip(path / "checkpoint", 90)


def settings(path: Path) -> None:
    flip(path / "wheel.json", 40)


READING = [
    "verify", "dump", "stats", "inspect", "inspect list", "inspect list --ids", "inspect schedules", "repair --dry-run",
]  # fmt: skip
CASES: list[tuple[Callable[[Path], None], int]] = [
    (torn_tail, 0),
    (unproven_gap, 0),
    (lagging_gap, 12),
    (dealt_file, 12),
    (missing_file, 12),
    (checkpoint, 12),
    (settings, 12),
]


@pytest.mark.parametrize(("spoil", "code"), CASES, ids=lambda case: getattr(case, "__name__", None))
def test_every_command_that_reads_agrees_on_what_is_damaged_and_after_a_repair_on_that_nothing_is(
    wheel_dir: Path, spoil: Callable[[Path], None], code: int
) -> None:
    with Wheel(wheel_dir, clock=CLOCK) as wheel:
        for i in range(4):
            wheel.enqueue(b"%d" % i, delay=100_000, sync="never")
    spoil(wheel_dir)
    assert {verb: invoke("-C", wheel_dir, *verb.split()).code for verb in READING} == dict.fromkeys(READING, code)
    assert invoke("-C", wheel_dir, "repair", "--yes").code == 0
    assert {verb: invoke("-C", wheel_dir, *verb.split()).code for verb in READING} == dict.fromkeys(READING, 0)


def test_a_scrape_of_a_damaged_wheel_succeeds_and_its_gauge_counts_the_places(wheel_dir: Path) -> None:
    with Wheel(wheel_dir, clock=CLOCK) as wheel:
        wheel.enqueue(b"", delay=100_000)
    missing_file(wheel_dir)
    for scrape in ("metrics", "stats --prometheus"):
        found = invoke("-C", wheel_dir, *scrape.split())
        assert found.code == 0
        assert "filewheel_damaged{" in found.out
        assert any(line.startswith("filewheel_damaged{") and line.endswith(" 1") for line in found.lines)
    assert "1 place is damaged; `filewheel verify` names each" in invoke("-C", wheel_dir, "metrics").err


def test_people_are_told_of_damage_where_they_look(wheel_dir: Path) -> None:
    with Wheel(wheel_dir, clock=CLOCK) as wheel:
        wheel.enqueue(b"", delay=100_000)
    missing_file(wheel_dir)
    for verb in ("stats", "inspect"):
        told = invoke("-C", wheel_dir, verb, "--no-json")
        assert "damaged 1 place; `filewheel verify` names each" in [" ".join(line.split()) for line in told.lines]


def test_repair_reports_what_it_put_aside_out_of_a_journal(wheel_dir: Path) -> None:
    with Wheel(wheel_dir, clock=CLOCK) as wheel:
        for i in range(4):
            wheel.enqueue(b"%d" % i, delay=100_000, sync="never")
    lagging_gap(wheel_dir)
    first, second, third, *_ = frame_starts(segment(wheel_dir).read_bytes())
    name = segment(wheel_dir).name
    assert first == 0
    done = repair(open_directory(wheel_dir, write=True, env=SYSTEM.using(clock=CLOCK)))
    assert done.bytes_aside == third - second
    assert f"journal/{name}: {third - second} bytes at offset {second} put aside" in done.done
    (kept,) = wheel_dir.glob("quarantine/*.bin")
    assert kept.stat().st_size == third - second


@pytest.mark.parametrize("where", ["due later", "a dead letter"])
def test_a_put_that_is_no_message_is_repaired_before_it_is_due(wheel_dir: Path, where: str) -> None:
    with Wheel(wheel_dir, clock=CLOCK) as wheel:
        wheel.enqueue(b"kept", delay=100_000)
        journal = wheel._writer()
        id_ = journal.new_id(CLOCK.wall_us + 10**11 if where == "due later" else DEAD_US + 5)
        journal.append([b"\x98\x01\xc4\x10" + id_ + b"\xc0\x01\x02\x03\x04\x05"], 1)
    directory = open_directory(wheel_dir, write=True)
    assert verify(directory).damage
    done = repair(timed(directory, CLOCK))
    assert done.bytes_aside == 26
    assert any("1 records that are no message put aside" in line for line in done.done)
    assert not verify(directory).damage
    assert not repair(timed(directory, CLOCK)).done
    assert [p.stat().st_size for p in wheel_dir.glob("quarantine/*.bin")] == [26]
    with Wheel(wheel_dir, clock=CLOCK) as wheel:
        assert [m.payload for m in wheel.list()] == [b"kept"]
        assert not list(wheel.list(dead=True))
