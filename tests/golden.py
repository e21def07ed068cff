"""The golden wheels: what each format looks like on disk, byte for byte, made anew from a short story.

    python -m tests.golden        writes data/golden/ again

Nothing here is random: the clock is told what to say, and each writer's name and first sequence number are given. So
the same code writes the same bytes, and a test compares them with the ones that were committed. When they differ the
format has changed, and that needs a new FORMAT and a new directory (docs/format.md, "Changing the format"); the old
directory stays as it is, for the old reader to read.

Left out: keeper.lock (it names a process), hint (a pipe), begun (a mark), ballast (reserved space), the empty locks of
ids/.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

from filewheel.disk.checkpoint import Covered
from filewheel.disk.directory import open_directory
from filewheel.disk.disk import SYSTEM
from filewheel.format import layout
from filewheel.format.record import PUT_PREFIX, pack_middle, pack_payload
from filewheel.journal.journal import Journal
from filewheel.keeper import Keeper
from filewheel.laps.deal import Deal
from filewheel.laps.slot import slot_file
from filewheel.message import US_PER_S, MessageId, to_datetime
from filewheel.roster.fence import Fence
from filewheel.roster.roster import Member, Roster, change_roster
from filewheel.tools.dump import dump, to_json
from filewheel.wheel import Wheel
from tests.support_wheel import append

GOLDEN = Path(__file__).parent.parent / "data" / "golden"
V1 = GOLDEN / "v1"
V1_SET = GOLDEN / "v1-set"
V2 = GOLDEN / "v2"
V2_SET = GOLDEN / "v2-set"
V3_NEWER = GOLDEN / "v3-newer"
EXPECTED = "expected.jsonl"

SALT = bytes(range(16))
START_S = 1_800_000_000
"""2027-01-15T08:00:00Z, the first second of lap 2,000,000."""
_LEFT_OUT = {layout.LOCK, layout.HINT, layout.BEGUN, layout.BALLAST, layout.IDS}
_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"


class Clock:
    """A clock that moves when told to."""

    def __init__(self) -> None:
        self.wall_us = START_S * US_PER_S
        self._steady_us = 0

    def now_us(self) -> int:
        return self.wall_us

    def steady_us(self) -> int:
        self._steady_us += 1
        return self._steady_us

    def advance(self, us: int) -> None:
        self.wall_us += us


def named(writer: str, sequence: int = 1) -> Callable[[int], bytes]:
    """Return an entropy that gives a writer this name and this first sequence number."""
    number = 0
    for char in writer:
        number = number << 5 | _ALPHABET.index(char)
    return lambda size: (number if size == 5 else sequence).to_bytes(size, "big")


def make_present(path: Path, copy: Path) -> list[dict[str, Any]]:
    """Live through the story in `path`, copy the wheel to `copy` while its keeper and a producer are at work.

    Such a copy is what a power cut leaves. Returns what is pending in it, as objects for JSON. The keeper deals the
    next lap into seconds as early as it did when the wheel was made: when it does is no matter of the format.
    """
    with mock.patch("filewheel.laps.deal.OPEN_AHEAD_S", 900):
        return _live(path, copy)


def _live(path: Path, copy: Path) -> list[dict[str, Any]]:
    clock = Clock()
    made = iter([bytes(range(16, 32)), SALT])
    Wheel.create(path, clock=clock, env=SYSTEM.using(entropy=lambda size: next(made))).close()

    # A lives through it all. Its journal is filled ahead with zeros, 2 KiB at a time.
    a = Wheel(path, clock=clock, env=SYSTEM.using(entropy=named("PRDCR001")))
    a._journal = Journal(a._dir, fill_bytes=2048, fence=Fence(a._dir))
    a.enqueue(b"late, and left claimed", at=_at(-5))
    a.enqueue(b"late, and acknowledged after the last deal", at=_at(-4.5))
    a.enqueue(b"put back once", at=_at(1), topic="retry", headers={"n": "1"})
    a.enqueue(b"buried", at=_at(2), topic="mail", headers={"to": "ann", "grüße": "☃"})
    a.enqueue(b"acknowledged", at=_at(3))
    a.enqueue_many([b"same second 1", b"same second 2", b"same second 3"], at=[_at(10.5), _at(10.25), _at(10)])
    cancelled = a.enqueue(b"cancelled in its slot", at=_at(11))
    a.enqueue(b"beside it", at=_at(11.5))
    moved = a.enqueue(b"moved out of its slot", at=_at(12))
    next_lap = a.enqueue(b"in the next lap", at=_at(905))
    far = a.enqueue(b"in a far lap, cancelled there", at=_at(18_000))
    a.enqueue(b"in the same far lap", at=_at(18_899.999999))
    large = a.enqueue(b"\0" * 5_000, at=_at(27_000))
    a.enqueue(b"in a lap that is dealt anew", at=_at(27_001))
    # A put whose topic is a number: its checksum holds and it is not a message. It ends in quarantine.
    strange = PUT_PREFIX + MessageId.make((START_S + 4) * US_PER_S, 1, 1)
    strange += pack_middle(clock.now_us(), "", None)[:-2] + b"\x07\x80" + pack_payload(b"strange")
    a._journal.append([strange], 1)

    keeper = Keeper(path, background=False, clock=clock, env=SYSTEM.using(entropy=named("KEEPER01")))
    store = keeper._store
    Deal(store, spread=True).run()
    a.cancel_many([cancelled, far, large])
    a.reschedule(moved, at=_at(50))
    Deal(store, spread=True).run()

    clock.advance(5 * US_PER_S)
    batch = {m.payload: m for m in keeper.claim()}
    keeper.ack(batch[b"acknowledged"])
    keeper.nack(batch[b"put back once"], delay=300)
    keeper.bury(batch[b"buried"], reason="no handler is called mail")
    Deal(store, spread=True, finished=lambda: ({START_S + n for n in (1, 2, 3, 4)}, set())).run()

    # What C cancels lies in A's journal, above the cut of a deal that has room for one record only: unmatched.
    late = a.enqueue(b"dropped before it is dealt", at=_at(70))
    c = Wheel(path, clock=clock, env=SYSTEM.using(entropy=named("CANCE001")))
    c.cancel(late)
    c.close()
    Deal(store, spread=True, chunk_records=1).run()
    _deal_in_vain(keeper)

    # Undealt: everything from here on.
    keeper.ack(batch[b"late, and acknowledged after the last deal"])
    a.enqueue(b"plain", at=_at(60))
    a.enqueue(b"", at=_at(61), topic="empty")
    a.enqueue(bytes(range(128, 256)), at=_at(62), topic="bytes", headers={"a": "", "": "b", "µ": '\x00\n"\\'})
    a.enqueue_many(
        [b"batch %d" % n for n in range(4)],
        at=[_at(63), _at(7_200), _at(0), _at(63)],
        topic=["", "x.y", "ü", "x"],
    )
    a.enqueue(b"z" * 300, at=_at(64))
    a.cancel(a.enqueue(b"cancelled in the journal", at=_at(65)))
    here = a.enqueue(b"moved in the journal", at=_at(66), topic="move", headers={"k": "v"})
    a.reschedule(here, at=_at(66.000001))
    a.reschedule(next_lap, at=_at(253_402_300_799 - START_S))  # the last second there is
    a.close()

    # B goes on in a second segment, and loses its last frame half written.
    b = Wheel(path, clock=clock, env=SYSTEM.using(entropy=named("PRDCR002", (1 << 29) - 1)))
    b.enqueue(b"before the rotation", at=_at(80))
    b._writer().rotate()
    b.enqueue(b"after the rotation", at=_at(81), sync="never")
    b.enqueue(b"never confirmed" * 9, at=_at(82), sync="never")

    shutil.copytree(path, copy, ignore=lambda where, names: set(names) & _LEFT_OUT)
    torn = copy / layout.segment("PRDCR002", 2)
    assert b._journal is not None
    os.truncate(torn, b._journal.position.offset - 100)
    b.close()
    keeper.close()
    with Wheel(copy, clock=clock) as wheel:
        return [to_json(message) for message in dump(wheel)]


def make_set(path: Path, copy: Path) -> list[dict[str, Any]]:
    """Live through a second story: a primary with a backup, unique keys, and writers of which `synced` is behind.

    Returns what is pending in the copy, as `make_present` does.
    """
    clock = Clock()
    id_ = bytes(range(32, 48))
    made = iter([id_, SALT])
    Wheel.create(path, clock=clock, env=SYSTEM.using(entropy=lambda size: next(made))).close()
    backup = Member("/wheels/orders.copy", "b" * 32, "ship", "current", since_us=clock.wall_us)
    roster = Roster("5" * 32, 1, "primary", "/wheels/orders", id_.hex(), (backup,))
    change_roster(open_directory(path, write=True), lambda _: roster)

    with _writer(path, clock, "KEYED001") as keyed:
        keyed.enqueue(b"held", at=_at(7_200), key="report")
        keyed.enqueue(b"replaced", at=_at(60), key="daily/ü")
        keyed.enqueue(b"took its place", at=_at(61), key="daily/ü", on_conflict="replace")
        keyed.enqueue(b"ended", at=_at(62), key="free again")
        keyed.cancel(key="free again")
    keeper = Keeper(path, background=False, clock=clock, env=SYSTEM.using(entropy=named("KEEPER01")))
    Deal(keeper._store, spread=True).run()

    with _writer(path, clock, "BEHND001") as sealed:
        for n in range(5):
            sealed.enqueue(b"sealed %d" % n, at=_at(100 + n), sync="never")
    killed = _writer(path, clock, "BEHND002")
    for n in range(5):
        killed.enqueue(b"killed %d" % n, at=_at(200 + n), sync="never")
        if n == 2:
            killed.flush()

    shutil.copytree(path, copy, ignore=lambda where, names: set(names) & _LEFT_OUT)
    assert killed._journal is not None
    os.truncate(copy / layout.segment("BEHND002", 1), killed._journal.position.offset + 256)
    killed.close()
    keeper.close()
    with Wheel(copy, clock=clock) as wheel:
        return [to_json(message) for message in dump(wheel)]


def _writer(path: Path, clock: Clock, name: str) -> Wheel:
    """Open a wheel that writes under this name, and nothing ahead."""
    wheel = Wheel(path, clock=clock, env=SYSTEM.using(entropy=named(name)))
    wheel._journal = Journal(wheel._dir, fill_bytes=0, fence=Fence(wheel._dir))
    return wheel


def _at(seconds: float) -> Any:
    """Return the time that many seconds after the start, exactly."""
    return to_datetime(START_S * US_PER_S + round(seconds * US_PER_S))


def _deal_in_vain(keeper: Keeper) -> None:
    """Leave what a deal leaves that dies before its commit: a longer file, and one that no checkpoint names."""
    for second, text in ((START_S + 10, b"above the covered length"), (START_S + 90, b"in a file that is not named")):
        put = PUT_PREFIX + MessageId.make(second * US_PER_S, 2, 2) + pack_middle(0, "", None) + pack_payload(text)
        deal = keeper._store.checkpoint.deal + 1
        covered = keeper._store.checkpoint.slots.get(second, Covered(0, deal))
        name = slot_file(keeper._dir.settings, second, covered).name
        append(keeper._dir, name, covered.end, [put], [], deal=deal)


def newer_settings() -> bytes:
    """Return a wheel.json of format 3, with a key that format 2 does not know."""
    body = json.dumps({"format": 3, "id": bytes(16).hex(), "salt": SALT.hex(), "later": ["something new"]}, indent=2)
    return f'{body[:-2]},\n  "crc32": {zlib.crc32(body.encode())}\n}}\n'.encode()


def lines(pending: list[dict[str, Any]]) -> bytes:
    """Return messages as JSON lines."""
    return "".join(json.dumps(fields, ensure_ascii=False) + "\n" for fields in pending).encode()


def files_of(path: Path) -> dict[str, bytes]:
    """Return the golden files below a directory: name → bytes."""
    return {p.relative_to(path).as_posix(): p.read_bytes() for p in sorted(path.rglob("*")) if p.is_file()}


def make(path: Path) -> dict[str, bytes]:
    """Make the golden files of the present format in `path`, an empty directory; return name → bytes."""
    pending = make_present(path / "lived", path / "copy")
    return files_of(path / "copy") | {EXPECTED: lines(pending)}


def make_set_files(path: Path) -> dict[str, bytes]:
    """Make the golden files of a set in `path`, an empty directory; return name → bytes."""
    pending = make_set(path / "lived", path / "copy")
    return files_of(path / "copy") | {EXPECTED: lines(pending)}


def main() -> None:
    """Write data/golden/ again."""
    with tempfile.TemporaryDirectory() as scratch, tempfile.TemporaryDirectory() as second:
        files = make(Path(scratch))
        of_set = make_set_files(Path(second))
    for target, content in ((V2, files), (V2_SET, of_set), (V3_NEWER, {layout.SETTINGS: newer_settings()})):
        shutil.rmtree(target, ignore_errors=True)
        for name, data in content.items():
            place = target / name
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(data)
            print(f"{len(data):7} {os.path.relpath(place)}", file=sys.stderr)


if __name__ == "__main__":
    main()
