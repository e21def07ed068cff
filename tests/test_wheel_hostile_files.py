"""What a faulty writer, a hand-made file or a hostile line may leave: refused or kept aside, it costs nothing else.

Each of these was a fault that writing down the format found.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from filewheel import BadArgument, Keeper, Message, MessageId, NewerFormat, NotFound, Wheel
from filewheel.disk.directory import open_directory
from filewheel.format.frame import HEADER_BYTES, seal
from filewheel.format.record import pack_drop
from filewheel.format.settings import parse_settings
from filewheel.message import to_datetime
from filewheel.tools.dump import from_json
from filewheel.tools.verify import verify
from tests.support_wheel import NOW_S, NOW_US, StillClock, a_put, an_id

LATER = to_datetime(NOW_US + 50_000_000)


@contextlib.contextmanager
def within(seconds: float) -> Iterator[None]:
    """Raise when something takes longer."""

    def give_up(number: int, frame: object) -> None:
        raise AssertionError("it goes round and round")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.fixture
def wheel(tmp_path: Path) -> Wheel:
    return Wheel.create(tmp_path / "w", clock=StillClock())


def keep(wheel: Wheel) -> list[int]:
    """Be the keeper for a moment; return the sizes of what is in quarantine then."""
    Keeper(wheel.path, background=False, clock=StillClock()).close()
    return [p.stat().st_size for p in (Path(wheel.path) / "quarantine").glob("*.bin")]


def test_damage_at_the_end_of_a_segment_that_was_rotated_is_kept_aside_with_its_bytes(wheel: Wheel) -> None:
    journal = wheel._writer()
    journal.appender._on_segment_end = None
    wheel.enqueue(b"unhurt!", at=LATER)
    wheel.enqueue(b"damaged", at=LATER)
    journal.rotate()
    wheel.enqueue(b"next", at=LATER)
    wheel.close()
    first = min((Path(wheel.path) / "journal").iterdir())
    data = first.read_bytes()
    first.write_bytes(data.replace(b"damaged", b"damagee"))
    assert keep(wheel) == [(len(data) - HEADER_BYTES) // 2]  # one of two frames; the third is the seal


def test_a_frame_that_verifies_and_holds_nonsense_is_kept_aside_before_its_journal_goes(wheel: Wheel) -> None:
    wheel._writer().append([b"\xc1" + bytes(30)], 1)
    wheel.enqueue(b"good", at=LATER)
    wheel.close()
    assert len(keep(wheel)) == 1


@pytest.mark.parametrize(
    "fields", [{"id": b"short"}, {"root": b"short"}, {"enqueued_us": -1}, {"attempt": "x"}], ids=str
)
def test_a_message_with_an_id_that_is_none_is_refused_before_it_spoils_the_others(
    wheel: Wheel, fields: dict[str, object]
) -> None:
    wrong = Message(an_id(NOW_S + 50), b"wrong")
    for name, value in fields.items():
        setattr(wrong, name, value)
    with wheel, pytest.raises(BadArgument):
        wheel.add([Message(an_id(NOW_S + 51), b"right"), wrong])


def test_counting_goes_on_behind_a_frame_that_holds_nonsense(wheel: Wheel) -> None:
    with wheel:
        wheel.enqueue(b"before", at=LATER)
        wheel._writer().append([b"\x91\x05" + bytes(20)], 0)
        wheel.enqueue(b"behind", at=LATER)
        assert wheel.histogram([0, NOW_S + 100]).counts == [2]
        assert wheel.stats().pending == 2


def test_a_newer_wheel_json_is_newer_however_its_json_was_written() -> None:
    """docs/format.md, section 3: the checksum is over the bytes, and its rule holds for ever."""
    body = b'{\n  "format": 3,\n  "by": "gr\xc3\xbc\xc3\x9fe",\n  "limit": 1e3,\n  "tight": [1,2]\n}'
    data = body[:-2] + b',\n  "crc32": %d\n}\n' % zlib.crc32(body)
    assert json.loads(data)["crc32"] == zlib.crc32(body)
    with pytest.raises(NewerFormat):
        parse_settings(data, "p")


def test_a_wheel_json_that_was_edited_into_an_equal_object_is_damaged(tmp_path: Path) -> None:
    Wheel.create(tmp_path / "w").close()
    place = tmp_path / "w" / "wheel.json"
    place.write_bytes(json.dumps(json.loads(place.read_bytes())).encode())
    with Wheel(tmp_path / "w") as wheel:
        assert wheel.notes


def test_what_a_reader_lists_is_what_the_keeper_fires_with_a_foreign_segment_0(wheel: Wheel) -> None:
    name, id_ = "journal/AAAAAAAA-000000.log", MessageId(an_id(NOW_S - 5))
    with wheel:
        seed = wheel._dir.seed(name)
        put = a_put(id_)
        place = Path(wheel.path) / name
        place.write_bytes(seal(put, seed=seed, offset=0, number=1, synced=0, puts=1, drops=0, first=id_, last=id_))
        os.chmod(place, 0o600)
        listed = [m.id for m in wheel.list()]
        with Keeper(wheel.path, background=False, clock=StillClock()) as keeper:
            assert [m.id for m in keeper.claim()] == listed


def test_one_loaded_message_with_a_due_at_the_end_of_all_time_does_not_stop_every_keeper(wheel: Wheel) -> None:
    with wheel:
        wheel.enqueue(b"innocent", at=LATER)
        last = {"id": "7" + "Z" * 24 + "Y", "root": str(an_id(5)), "payload": "x"}
        with contextlib.suppress(BadArgument):  # to refuse it is as well
            wheel.add([from_json(last)])
    keep(wheel)


def test_a_deal_ends_though_a_frame_counts_nonsense_among_its_puts(wheel: Wheel) -> None:
    """The frame's sums hold and its header says two puts: what a faulty writer may leave."""
    wheel._writer().append([a_put(an_id(NOW_S + 50)), b"\xc4\x28" + b"\x01" * 40], 2)
    wheel.close()

    with within(1):
        keep(wheel)


LAST = MessageId(b"\xff" * 16)


def test_an_id_that_no_message_can_have_names_none(wheel: Wheel) -> None:
    with wheel:
        wheel.enqueue(b"good", at=LATER)
        assert wheel.get(LAST) is None
        assert not wheel.cancel(LAST)
        with pytest.raises(NotFound):
            wheel.reschedule(LAST, at=LATER)
        assert [m.payload for m in wheel.list()] == [b"good"]


@pytest.mark.parametrize("record", [a_put(LAST), pack_drop(LAST, 1)], ids=["put", "drop"])
def test_a_record_that_is_due_after_all_time_is_kept_aside_and_the_rest_goes_on(wheel: Wheel, record: bytes) -> None:
    wheel._writer().append([record], record[1] == 1)
    wheel.enqueue(b"good", at=LATER)
    with wheel:
        assert wheel.stats().pending == 1
        assert wheel.topics() == {"": 1}
    assert len(keep(wheel)) == 1


def test_counting_topics_goes_on_behind_a_message_with_a_field_that_is_none(wheel: Wheel) -> None:
    with wheel:
        wheel.enqueue(b"good", at=LATER)
        put = a_put(an_id(NOW_S + 9))
        wheel._writer().append([put[:-4] + b"\xa1\xff" + put[-3:]], 1)  # a topic that is not UTF-8
        assert wheel.topics() == {"": 1}


def test_a_foreign_segment_with_the_largest_number_keeps_nobody_busy_with_counting(wheel: Wheel) -> None:
    with wheel:
        id_ = wheel.enqueue(b"good", at=LATER)
        journal = Path(wheel.path) / "journal"
        for writer in ("AAAAAAAA", id_.writer):
            (journal / f"{writer}-999999999999.log").write_bytes(b"nonsense")
    with within(1):
        keep(wheel)
    with Wheel(wheel.path, clock=StillClock()) as again:
        assert [m.payload for m in again.list()] == [b"good"]


def test_what_is_no_regular_file_under_a_segments_name_is_never_removed(wheel: Wheel) -> None:
    """Number 2: the journal is stepped through to it, and the writer counts as ended there."""
    with wheel:
        wheel.enqueue(b"good", at=LATER)
    journal = Path(wheel.path) / "journal"
    (journal / "AAAAAAAA-000002.log").mkdir()
    (journal / "BBBBBBBB-000002.log").symlink_to("/dev/zero")
    keep(wheel)
    assert sorted(p.name for p in journal.iterdir()) == ["AAAAAAAA-000002.log", "BBBBBBBB-000002.log"]


def test_a_note_in_quarantine_that_is_nested_without_end_is_listed_by_its_name(wheel: Wheel) -> None:
    (Path(wheel.path) / "quarantine" / "deep.json").write_bytes(b"[" * 60_000)
    with wheel:
        assert wheel.stats().quarantined == 1


@pytest.mark.damages
@pytest.mark.parametrize("doubt", [False, True], ids=["", "without a checkpoint"])
def test_a_hole_of_a_terabyte_under_a_valid_name_keeps_nobody_busy(wheel: Wheel, doubt: bool) -> None:
    with wheel:
        wheel.enqueue(b"good", at=LATER)
    path = Path(wheel.path)
    lap = NOW_S // 900
    (path / "laps" / f"{lap}").mkdir(exist_ok=True)
    for name in ("journal/AAAAAAAA-000001.log", f"laps/{lap + 5}.lap", f"laps/{lap}/{lap * 900 + 10}.slot"):
        with open(path / name, "wb") as file:
            try:
                file.truncate(1 << 40)
            except OSError as exc:
                pytest.skip(f"no file of a terabyte here: {exc}")
    if doubt:
        (path / "checkpoint").write_bytes(b"garbage")
        (path / "checkpoint.old").unlink(missing_ok=True)
    with within(10):
        with Wheel(path, clock=StillClock()) as again:
            assert [m.payload for m in again.list()] == [b"good"]
            again.stats()
        verify(open_directory(path, write=False))
        with Keeper(path, background=False, clock=AtLater()) as keeper:
            batch = keeper.claim()
            assert [m.payload for m in batch] == [b"good"]
            keeper.ack(batch)


class AtLater(StillClock):
    """A clock that stands still a minute on."""

    def __init__(self) -> None:
        super().__init__(NOW_US + 60_000_000)
