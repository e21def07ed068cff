"""Frames: what is read is what was written at that place, or is a gap."""

from __future__ import annotations

import random
import zlib
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from filewheel.format import frame as frame_module
from filewheel.format import layout
from filewheel.format.frame import BODY_BYTES_MAX, HEADER_BYTES, MAGIC, Frame, Gap, Scanner, pad, seal
from filewheel.message import ID_END, ID_MIN
from tests.support import seeds
from tests.support_wheel import flip, frames_of, gaps_of, reading, scan

SEED = layout.seed(bytes(range(16)), "journal/AAAAAAAA-000001.log")
OTHER = layout.seed(bytes(range(16)), "journal/AAAAAAAA-000002.log")


def file_of(bodies: list[bytes], *, seed: int = SEED, start: int = 0) -> bytes:
    """Return a run of frames with these bodies; the i-th frame has number i and the ids i and i."""
    data = b""
    for n, body in enumerate(bodies, 1):
        id_ = n.to_bytes(16, "big")
        data += seal(
            body, seed=seed, offset=start + len(data), number=n, synced=n - 1, puts=1, drops=0, first=id_, last=id_
        )
    return data


BODIES = [b"one", b"", b"three three three", b"8 bytes.", b"five", b"\xf5FW1 six"]
FILE = file_of(BODIES)
FRAMES = frames_of(scan(FILE, SEED))


def extents() -> list[tuple[int, int, int]]:
    """Return (number, start, end of the body) of each frame of FILE."""
    return [(f.number, f.offset, f.offset + HEADER_BYTES + len(f.body)) for f in FRAMES]


def at_their_place(data: bytes) -> list[Frame]:
    """Return the frames of FILE that stand unchanged where they stood."""
    return [f for f, (_, start, end) in zip(FRAMES, extents(), strict=True) if data[start:end] == FILE[start:end]]


# -- what was written is read -----------------------------------------------------------------------------------


def test_a_run_of_frames_is_read_back_whole() -> None:
    assert [f.body for f in FRAMES] == BODIES
    assert [f.number for f in FRAMES] == [1, 2, 3, 4, 5, 6]
    assert [f.synced for f in FRAMES] == [0, 1, 2, 3, 4, 5]
    assert FRAMES[-1].end == len(FILE)
    assert all(a.end == b.offset for a, b in pairwise(FRAMES))
    assert len(scan(FILE, SEED)) == len(BODIES)


U32, U64 = st.integers(0, (1 << 32) - 1), st.integers(0, (1 << 64) - 1)
ID = st.binary(min_size=16, max_size=16)


@given(
    st.lists(st.tuples(st.binary(max_size=100), U64, U64, U32, U32, ID, ID), max_size=6),
    U32,
    st.integers(0, 1 << 36).map(lambda n: n * 8),
)
def test_any_frames_at_any_offset_of_any_file_are_read_back(
    frames: list[tuple[bytes, int, int, int, int, bytes, bytes]], seed: int, start: int
) -> None:
    data = b""
    for body, number, synced, puts, drops, first, last in frames:
        data += seal(
            body, seed=seed, offset=start + len(data), number=number, synced=synced, puts=puts, drops=drops,
            first=first, last=last,
        )  # fmt: skip
        assert len(data) % 8 == 0
    scanner = Scanner(lambda size, at: data[at - start : at - start + size], start, start + len(data), seed)
    found = list(scanner)
    assert [
        (f.body, f.number, f.synced, f.puts, f.drops, f.first, f.last) for f in found if isinstance(f, Frame)
    ] == frames
    assert scanner.pos == start + len(data)


@pytest.mark.parametrize("size", range(20))
def test_a_frame_is_padded_to_a_multiple_of_8(size: int) -> None:
    assert (size + pad(size)) % 8 == 0
    assert 0 <= pad(size) < 8
    assert len(file_of([b"x" * size])) == HEADER_BYTES + size + pad(size)


def test_frames_larger_than_a_block_and_across_blocks_are_read() -> None:
    rng = random.Random(1)
    bodies = [rng.randbytes(size) for size in (300_000, 10, 262_072, 262_144, 1 << 20, 0, 7)]
    data = file_of(bodies)
    assert [f.body for f in frames_of(scan(data, SEED))] == bodies


def test_a_gap_larger_than_a_block_is_stepped_over() -> None:
    rng = random.Random(2)
    for hole in (262_136, 262_144, 262_152, 800_000):
        junk = rng.randbytes(hole)
        data = junk + file_of([b"behind it"], start=hole)
        gap, frame = scan(data, SEED)
        assert isinstance(gap, Gap)
        assert isinstance(frame, Frame)
        assert (gap.offset, gap.end, gap.at_end, gap.blank) == (0, hole, False, False)
        assert frame.body == b"behind it"


def test_reading_may_start_at_any_frame() -> None:
    for n, frame in enumerate(FRAMES):
        assert [f.number for f in frames_of(scan(FILE, SEED, start=frame.offset))] == list(range(n + 1, 7))


# -- what was damaged is not ------------------------------------------------------------------------------------


def test_every_flipped_bit_loses_exactly_the_frame_that_it_hits() -> None:
    for bit in range(len(FILE) * 8):
        hit = {n for n, start, end in extents() if start <= bit // 8 < end}
        found = frames_of(scan(flip(FILE, bit), SEED))
        assert found == [f for f in FRAMES if f.number not in hit], f"bit {bit}"


def test_every_flipped_bit_is_reported_as_one_gap_from_the_frame_that_it_hits_to_the_next() -> None:
    for bit in range(0, len(FILE) * 8, 5):
        hit = [f for f, (_, start, end) in zip(FRAMES, extents(), strict=True) if start <= bit // 8 < end]
        found = gaps_of(scan(flip(FILE, bit), SEED))
        assert [(g.offset, g.end) for g in found] == [(f.offset, f.end) for f in hit], f"bit {bit}"
        assert all(not g.blank for g in found)
        assert all(g.at_end == (g.end == len(FILE)) for g in found)


def test_every_truncation_loses_the_frames_that_it_cuts_and_no_other() -> None:
    for size in range(len(FILE)):
        found = scan(FILE[:size], SEED)
        assert frames_of(found) == [f for f, (_, _, end) in zip(FRAMES, extents(), strict=True) if end <= size]
        gaps = gaps_of(found)
        assert len(gaps) <= 1
        assert all(g.at_end and g.end == size for g in gaps)


def test_a_file_that_lacks_the_padding_of_its_last_frame_is_whole() -> None:
    data = file_of([b"12345678", b"1"])
    for missing in range(8):
        assert [f.number for f in scan(data[: len(data) - missing], SEED) if isinstance(f, Frame)] == [1, 2]
        assert not gaps_of(scan(data[: len(data) - missing], SEED))


@given(st.integers(0, len(FILE)), st.binary(min_size=1, max_size=200))
def test_bytes_written_over_frames_lose_exactly_those_that_they_change(at: int, junk: bytes) -> None:
    junk = junk[: len(FILE) - at]
    data = FILE[:at] + junk + FILE[at + len(junk) :]
    assert frames_of(scan(data, SEED)) == at_their_place(data)


@given(st.integers(0, len(FILE)), st.binary(min_size=1, max_size=200))
def test_bytes_put_between_frames_leave_only_what_is_still_at_its_place(at: int, junk: bytes) -> None:
    data = FILE[:at] + junk + FILE[at:]
    found = frames_of(scan(data, SEED))
    assert found == at_their_place(data)


@given(st.integers(0, len(FILE)), st.integers(1, 200))
def test_bytes_taken_out_between_frames_leave_only_what_is_still_at_its_place(at: int, size: int) -> None:
    data = FILE[:at] + FILE[at + size :]
    found = frames_of(scan(data, SEED))
    assert found == at_their_place(data)


@given(st.binary(max_size=2_000), U32)
def test_random_bytes_are_never_frames(data: bytes, seed: int) -> None:
    assert not frames_of(scan(data, seed))
    assert not frames_of(scan(MAGIC + data, seed))


@pytest.mark.parametrize("size", [1, 7, 8, 71, 72, 73, 4_096, 600_000])
def test_zeros_are_one_blank_gap(size: int) -> None:
    (gap,) = scan(bytes(size), SEED)
    assert gap == Gap(0, size, gap.reason, blank=True, at_end=True)


def test_zeros_behind_frames_are_blank_and_anything_else_is_not() -> None:
    assert [(g.offset, g.blank) for g in gaps_of(scan(FILE + bytes(100), SEED))] == [(len(FILE), True)]
    assert [(g.offset, g.blank) for g in gaps_of(scan(FILE + bytes(99) + b"x", SEED))] == [(len(FILE), False)]


def test_zeros_between_frames_are_a_gap_that_is_not_at_the_end() -> None:
    data = FILE + bytes(64)
    data += seal(b"", seed=SEED, offset=len(data), number=7, synced=6, puts=0, drops=0)
    (gap,) = gaps_of(scan(data, SEED))
    assert (gap.offset, gap.end, gap.at_end) == (len(FILE), len(FILE) + 64, False)


def test_nothing_at_all_is_neither_frame_nor_gap() -> None:
    assert scan(b"", SEED) == []


# -- what belongs elsewhere is not ------------------------------------------------------------------------------


def test_a_frame_copied_to_another_offset_does_not_verify() -> None:
    for frame in FRAMES:
        piece = FILE[frame.offset : frame.end]
        for at in range(0, len(FILE) + 8, 8):
            if at != frame.offset:
                assert not frames_of(scan(bytes(at) + piece, SEED, start=at))


def test_a_frame_of_another_file_does_not_verify_at_the_same_offset() -> None:
    assert not frames_of(scan(FILE, OTHER))
    assert frames_of(scan(file_of(BODIES, seed=OTHER), OTHER))


def test_a_frame_of_another_wheel_does_not_verify() -> None:
    name = "journal/AAAAAAAA-000001.log"
    for salt in range(200):
        assert not frames_of(scan(FILE, layout.seed(salt.to_bytes(16, "big"), name)))


@given(U32.filter(lambda seed: seed != SEED))
def test_a_frame_verifies_under_no_seed_but_its_own(seed: int) -> None:
    assert not frames_of(scan(FILE, seed))


def test_an_empty_frame_is_bound_to_its_file_too_by_its_body_sum() -> None:
    """The header's sum starts from seed ^ offset/8: two files may agree on that at two offsets. The body's may not."""
    offset = 800
    data = seal(b"", seed=SEED ^ 100, offset=0, number=1, synced=0, puts=0, drops=0)
    assert not frames_of(scan(bytes(offset) + data, SEED, start=offset))
    assert frames_of(scan(data, SEED ^ 100))


@pytest.mark.parametrize("align", range(8))
def test_a_frame_hidden_in_a_payload_is_not_delivered_when_the_header_around_it_is_damaged(align: int) -> None:
    """Whoever enqueues does not know the salt; he may know everything else, the offset too."""
    before = len(file_of([b"first"]))
    at = before + HEADER_BYTES + align
    evil = seal(b"evil", seed=zlib.crc32(b"a guess"), offset=at, number=2, synced=1, puts=1, drops=0)
    copied = file_of([b"first"])  # a real frame of this very file, read somewhere and sent back as a payload
    for hidden in (evil, copied):
        data = file_of([b"first", bytes(align) + hidden, b"third"])
        assert [f.number for f in frames_of(scan(data, SEED))] == [1, 2, 3]
        for byte in range(before, before + HEADER_BYTES):
            found = frames_of(scan(flip(data, byte * 8), SEED))
            assert [f.number for f in found] == [1, 3]


def test_a_payload_full_of_magic_is_stepped_over() -> None:
    data = file_of([b"first", MAGIC * 50_000, b"third"])
    broken = flip(data, (len(file_of([b"first"])) + 20) * 8)
    assert [f.number for f in frames_of(scan(broken, SEED))] == [1, 3]


# -- limits -----------------------------------------------------------------------------------------------------


def header_with_size(size: int, offset: int = 0) -> bytes:
    """Return a header that verifies and claims a body of this size."""
    summed = size.to_bytes(4, "little") + bytes(4) + bytes(24) + ID_MIN + ID_END
    return MAGIC + zlib.crc32(summed, SEED ^ offset // 8).to_bytes(4, "little") + summed


class Watching:
    """A file of zeros behind a few bytes, that knows the largest read it was asked for."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.largest = 0

    def __call__(self, size: int, offset: int) -> bytes:
        self.largest = max(self.largest, size)
        return self.data[offset : offset + size]


@pytest.mark.parametrize("size", [BODY_BYTES_MAX + 1, (1 << 31) - 1, (1 << 32) - 1])
def test_a_length_over_the_limit_allocates_nothing_even_if_its_checksum_holds(size: int) -> None:
    pread = Watching(header_with_size(size) + bytes(1_000))
    (gap,) = Scanner(pread, 0, 1 << 33, SEED)
    assert isinstance(gap, Gap)
    assert gap.reason == "body length over the limit"
    assert pread.largest <= 1 << 18


def test_a_length_beyond_the_end_of_the_file_allocates_nothing() -> None:
    pread = Watching(header_with_size(BODY_BYTES_MAX) + bytes(1_000))
    (gap,) = Scanner(pread, 0, len(pread.data), SEED)
    assert isinstance(gap, Gap)
    assert gap.reason == "the file ends inside a body"
    assert pread.largest <= 1 << 18


def test_a_file_that_shrinks_while_it_is_read_ends_in_a_gap() -> None:
    data = file_of([b"x" * 1_000, b"y" * 1_000])
    for size in (0, 10, 500, 1_100, 1_500):
        found = list(Scanner(reading(data[:size]), 0, len(data), SEED))
        assert isinstance(found[-1], Gap)
        assert found[-1].at_end
        assert [f.number for f in frames_of(found)] == ([1] if size > 1_072 else [])


# -- ways of reading --------------------------------------------------------------------------------------------


def test_without_resync_reading_stops_at_the_first_thing_that_is_not_a_frame() -> None:
    data = flip(FILE, (FRAMES[2].offset + 80) * 8)
    scanner = Scanner(reading(data), 0, len(data), SEED, resync=False)
    assert [f.number for f in scanner if isinstance(f, Frame)] == [1, 2]
    assert scanner.pos == FRAMES[2].offset
    assert scanner.stopped == "body checksum"


def test_reading_to_the_end_leaves_no_reason_why_it_stopped() -> None:
    scanner = Scanner(reading(FILE), 0, len(FILE), SEED, resync=False)
    assert len(list(scanner)) == len(BODIES)
    assert scanner.stopped is None


def test_headers_alone_are_read_without_looking_at_bodies() -> None:
    data = bytearray(FILE)
    for _, start, end in extents():
        data[start + HEADER_BYTES : end] = bytes(end - start - HEADER_BYTES)
    found = list(Scanner(reading(bytes(data)), 0, len(data), SEED, headers=True))
    assert [(f.number, f.body) for f in found if isinstance(f, Frame)] == [(n, b"") for n in range(1, 7)]
    assert [f.end for f in found] == [f.end for f in FRAMES]


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), max_size=12), st.integers(0, 31), st.integers(0, 31))
def test_a_range_of_ids_yields_exactly_the_frames_that_meet_it(ranges: list[tuple[int, int]], lo: int, hi: int) -> None:
    data = b""
    for n, (a, b) in enumerate(ranges):
        first, last = min(a, b).to_bytes(16, "big"), max(a, b).to_bytes(16, "big")
        data += seal(b"z" * n, seed=SEED, offset=len(data), number=n, synced=0, puts=1, drops=0, first=first, last=last)
    found = Scanner(reading(data), 0, len(data), SEED, lo=lo.to_bytes(16, "big"), hi=hi.to_bytes(16, "big"))
    expected = [n for n, (a, b) in enumerate(ranges) if max(a, b) >= lo and min(a, b) < hi]
    assert [f.number for f in found if isinstance(f, Frame)] == expected


def test_an_empty_frame_lies_in_no_range_of_ids() -> None:
    data = seal(b"", seed=SEED, offset=0, number=1, synced=0, puts=0, drops=0)
    assert list(Scanner(reading(data), 0, len(data), SEED, lo=ID_MIN, hi=ID_END)) == []


def test_a_range_that_is_narrowed_while_reading_skips_what_it_no_longer_meets() -> None:
    scanner = Scanner(reading(FILE), 0, len(FILE), SEED, lo=ID_MIN, hi=ID_END)
    seen = []
    for frame in scanner:
        assert isinstance(frame, Frame)
        seen.append(frame.number)
        if frame.number == 2:
            scanner.narrow((5).to_bytes(16, "big"))
    assert seen == [1, 2, 3, 4]


def test_a_damaged_body_outside_of_the_range_is_stepped_over_unread() -> None:
    data = flip(FILE, (FRAMES[2].offset + HEADER_BYTES) * 8)
    lo = (4).to_bytes(16, "big")
    assert [f.number for f in Scanner(reading(data), 0, len(data), SEED, lo=lo) if isinstance(f, Frame)] == [4, 5, 6]
    assert not gaps_of(Scanner(reading(data), 0, len(data), SEED, lo=lo))


@pytest.mark.skipif(
    frame_module.read_frames is None, reason="the loops in C were not built: `apt install gcc python3-dev`"
)
@settings(max_examples=seeds(60, all_of=300).stop, deadline=None)
@given(st.data())
def test_frames_that_are_read_many_at_once_are_those_that_are_read_one_by_one(data: st.DataObject) -> None:
    sizes = data.draw(st.lists(st.sampled_from([0, 1, 40, 41, 300]), max_size=90))
    written = b""
    for number, size in enumerate(sizes):
        first = bytes([number]) * 16
        written += seal(
            bytes([number]) * size, seed=3, offset=len(written), number=number, synced=number // 2, puts=1, drops=0,
            first=first, last=bytes([number + data.draw(st.integers(0, 3))]) * 16,
        )  # fmt: skip
    damaged = bytearray(written)
    for at in data.draw(st.lists(st.integers(0, max(len(written) - 1, 0)), max_size=3)) if written else ():
        damaged[at] ^= 1 << data.draw(st.integers(0, 7))
    room = bytes(damaged) + bytes(data.draw(st.sampled_from([0, 5, 8, 200])))
    end = data.draw(st.integers(0, len(room)) | st.just(len(room)))
    ids = st.none() | st.integers(0, 95).map(lambda n: bytes([n]) * 16)
    options = {
        "resync": data.draw(st.booleans()), "lo": data.draw(ids), "hi": data.draw(ids),
        "block_bytes": data.draw(st.sampled_from([100, 500, 1 << 18])),
    }  # fmt: skip
    narrow_at, narrow = data.draw(st.integers(0, 9)), data.draw(ids)

    def read() -> tuple[list[Any], int, str | None]:
        scanner = Scanner(lambda size, at: room[at : at + size], 0, end, 3, **options)
        found = []
        for n, item in enumerate(scanner):
            found.append((item, scanner.pos))
            if n == narrow_at and narrow is not None and options["hi"] is not None:
                scanner.narrow(min(narrow, options["hi"]))
        return found, scanner.pos, scanner.stopped

    at_once = read()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(frame_module, "read_frames", None)
        assert read() == at_once
