"""A deal's puts: what is gathered comes out sorted and in frames, and the form in C does what that in Python does."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from itertools import pairwise
from random import Random
from types import ModuleType
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from filewheel.format.frame import Frame, Scanner
from filewheel.format.record import ID, pack_drop, pack_message
from filewheel.message import ID_END, ID_MIN, Message, MessageId
from filewheel.native import compiled as speed
from filewheel.native import puts as python
from filewheel.native.loops import part

try:
    from filewheel.native import _loops
except ImportError:  # not built: no compiler, or no headers
    compiled: ModuleType | None = None
else:
    compiled = _loops

FORMS = [python.PutTable] + ([compiled.PutTable] if compiled else [])
needs_compiled = pytest.mark.skipif(
    compiled is None, reason="the loops in C were not built: `apt install gcc python3-dev`"
)

FEW_IDS = st.builds(lambda n: n.to_bytes(8, "big") + bytes(8), st.integers(0, 9)) | st.binary(min_size=16, max_size=16)


def put(id_: bytes, payload: bytes = b"") -> bytes:
    return pack_message(Message(MessageId(id_), payload))


RECORDS = st.builds(put, FEW_IDS, st.binary(max_size=300)) | st.builds(pack_drop, FEW_IDS, st.just(1))
JUNK = st.sampled_from([b"", b"\xc1", b"\x01", b"\x92\x01\x02", b"\xdd\xff\xff\xff\xff"])
STEPS = st.lists(
    st.tuples(st.just("add"), st.lists(RECORDS, max_size=6), JUNK, st.booleans())
    | st.tuples(st.just("extend"), st.lists(RECORDS, max_size=4))
    | st.tuples(st.just("find"), FEW_IDS, st.integers(0, 9))
    | st.tuples(st.just("id"), st.integers(-2, 9))
    | st.tuples(st.sampled_from(["having", "remove"]), st.sets(FEW_IDS, max_size=4))
    | st.tuples(st.sampled_from(["unique", "size_bytes", "ids", "records"]))
    | st.tuples(st.just("full_at"), st.integers(0, 9), st.integers(0, 900))
    | st.tuples(st.just("keep"), st.integers(-1, 6))
    | st.tuples(st.just("cut"), st.integers(-1, 6), st.integers(-1, 6))
    | st.tuples(
        st.just("frames"), st.integers(-1, 6), st.integers(-1, 9), st.integers(0, (1 << 32) - 1),
        st.integers(0, 9).map(lambda n: n * 8), st.integers(0, 99), st.sampled_from([1, 100, 500, 1 << 17]),
    ),
    max_size=8,
)  # fmt: skip


def play(make: Callable[[], Any], steps: list[tuple[Any, ...]]) -> list[Any]:
    """Do these steps, and return what each gave, or the name of what it raised."""
    puts, said = make(), []
    for name, *args in steps:
        if name == "add":
            records, junk, wide = args
            ids = sorted(r[ID] for r in records) or [ID_MIN]
            args = [b"".join(records) + junk, ID_MIN if wide else ids[0], ID_END if wide else ids[-1]]
        try:
            said.append(getattr(puts, name)(*args))
        except (ValueError, IndexError) as exc:
            said.append((type(exc), str(exc) if isinstance(exc, ValueError) else ""))
        puts.sort()
        said.append((len(puts), puts.size_bytes()))
    said.append(puts.frames(0, len(puts), 7, 0, 3, 1 << 17))
    return said


@needs_compiled
@given(STEPS)
@example([("add", [put(bytes(16), b"a")], b"\xc1", True), ("frames", 0, 0, 1, 0, 1, 100)])
def test_both_forms_do_the_same(steps: list[tuple[Any, ...]]) -> None:
    assert compiled is not None
    assert play(compiled.PutTable, steps) == play(python.PutTable, steps)


@pytest.mark.parametrize("make", FORMS)
def test_what_came_in_many_frames_goes_out_sorted_in_frames_of_a_limited_size(make: Callable[[], Any]) -> None:
    rng = Random(5)
    records = [put(rng.randbytes(2) + bytes(14), rng.randbytes(rng.randrange(2000))) for _ in range(3000)]
    puts = make()
    for at in range(0, 3000, 100):
        assert puts.add(b"".join(records[at : at + 100]), ID_MIN, ID_END) == []
    puts.sort()
    data = puts.frames(0, 3000, 11, 64, 5, 10_000)
    room = bytes(64) + data
    found = list(Scanner(lambda size, at: room[at : at + size], 64, len(room), 11))
    frames = [f for f in found if isinstance(f, Frame)]
    assert frames == found
    assert [r for f in frames for r in part(f.body, f.first, f.last)[0]] == sorted(records)
    assert {f.number for f in frames} == {5}
    assert max(len(f.body) for f in frames) <= 10_000
    # Each holds as much as goes into it.
    for frame, following in pairwise(frames):
        first = part(following.body, following.first, following.last)[0][0]
        assert len(frame.body) + len(first) > 10_000


@pytest.mark.parametrize("make", FORMS)
def test_a_put_that_is_larger_than_a_frame_is_alone_in_one(make: Callable[[], Any]) -> None:
    puts = make()
    puts.extend([put(bytes([n]) * 16, bytes(size)) for n, size in enumerate((10, 5000, 10))])
    data = puts.frames(0, 3, 1, 0, 1, 100)
    sizes = [len(f.body) for f in Scanner(lambda size, at: data[at : at + size], 0, len(data), 1)]  # type: ignore[union-attr]
    assert len(sizes) == 3
    assert sizes[1] > 5000


@pytest.mark.parametrize("make", FORMS)
def test_of_a_frame_that_makes_no_sense_nothing_stays(make: Callable[[], Any]) -> None:
    good, other = put(b"b" * 16), put(b"c" * 16)
    for body, first, last in (
        (good + b"\xc1", ID_MIN, ID_END), (good + b"\x01", ID_MIN, ID_END), (good + other, b"b" * 16, b"b" * 16)
    ):  # fmt: skip
        puts = make()
        with pytest.raises(ValueError, match="record"):
            puts.add(body, first, last)
        assert len(puts) == 0
        assert puts.frames(0, 0, 1, 0, 1, 100) == b""


@pytest.mark.parametrize("make", FORMS)
def test_what_is_no_put_is_not_taken(make: Callable[[], Any]) -> None:
    puts = make()
    for record in (pack_drop(bytes(16), 1), b"", b"\x98\x01\xc4\x10"):
        with pytest.raises(ValueError, match="not a put"):
            puts.extend([put(bytes(16)), record])
    assert len(puts) == 0


def test_the_form_that_is_used_is_the_one_that_was_built() -> None:
    assert speed.PutTable is (compiled.PutTable if speed.COMPILED and compiled else python.PutTable)


@needs_compiled
@given(
    st.binary(max_size=300) | st.integers(0, 5000).map(lambda n: Random(n).randbytes(n)),
    st.integers(0, (1 << 32) - 1),
)
def test_checksums_are_those_of_zlib(data: bytes, seed: int) -> None:
    assert compiled is not None
    assert compiled.crc32(data, seed) == zlib.crc32(data, seed)


@needs_compiled
@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("add", (b"",)), ("add", (bytearray(), ID_MIN, ID_END)), ("add", (b"", b"", ID_END)), ("extend", ((),)),
        ("find", (b"", 0)), ("find", (ID_MIN,)), ("find", (ID_MIN, "0")), ("id", ("0",)), ("keep", ("0",)),
        ("full_at", (1,)), ("having", (1,)), ("remove", (1,)), ("cut", (0,)), ("cut", ("0", 1)),
        ("frames", (0, 0, 1, 0, 1)), ("frames", (0, 0, 1, 0, -1, 1)),
    ],
)  # fmt: skip
def test_a_call_that_makes_no_sense_is_an_error(name: str, args: tuple[Any, ...]) -> None:
    assert compiled is not None
    with pytest.raises((TypeError, OverflowError)):
        getattr(compiled.PutTable(), name)(*args)
