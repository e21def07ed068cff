"""The inner loops in C give what those in Python give, to the byte, and refuse what those refuse."""

from __future__ import annotations

import errno
import gc
import math
import os
import subprocess
import sys
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgpack
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from filewheel.errors import Damaged
from filewheel.firing.batch import _PLAIN_END
from filewheel.format.record import pack_drop, pack_message, pack_tail, unpack_put
from filewheel.message import DEAD_US, DUE_END_US, ID_END, ID_MIN, Message, MessageId
from filewheel.native import compiled as speed
from filewheel.native import loops
from tests.support import REPO

compiled = pytest.importorskip(
    "filewheel.native._loops", reason="the loops in C were not built: `apt install gcc python3-dev`"
)
compiled.learn(Message, MessageId)

IDS = st.binary(min_size=16, max_size=16)
LOWS = st.builds(lambda writer: (writer << 30).to_bytes(16, "big"), st.integers(0, (1 << 40) - 1))
SEQS = st.integers(0, (1 << 30) - 100)
DUES = st.integers(0, DUE_END_US - 1)
PAYLOADS = st.binary(max_size=40) | st.sampled_from([255, 256, 1000, 1100, 65_535, 65_536]).map(bytes)
TAILS = st.builds(
    lambda topic, headers: pack_tail(topic, headers),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=60),
    st.dictionaries(st.text(max_size=5).filter(str.isascii), st.just("x"), max_size=3),
)
MESSAGES = st.builds(
    Message,
    st.builds(lambda due, low: MessageId((due << 70 | low).to_bytes(16, "big")), DUES, st.integers(0, (1 << 70) - 1)),
    PAYLOADS,
    st.text(st.characters(exclude_categories=["Cs"]), max_size=60),
    st.dictionaries(st.sampled_from("abc"), st.sampled_from("xyz")),
    st.integers(0, 300),
    st.integers(0, (1 << 63) - 1),
    st.none() | st.builds(lambda due: MessageId.make(due, 1, 1), DUES),
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 64) - 1) | st.floats() | st.binary(max_size=20)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=20) | st.builds(msgpack.Timestamp, st.integers(0, 9)),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text("ab", max_size=2), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip


def both(name: str, *args: Any) -> tuple[Any, Any]:
    """Return what a function gives in C and in Python; an exception is its type, and for ValueError its words."""

    def run(function: Callable[..., Any]) -> Any:
        try:
            return function(*args)
        except ValueError as exc:
            return ValueError, str(exc)

    return run(getattr(compiled, name)), run(getattr(loops, name))


def test_this_run_uses_the_loops_that_it_says() -> None:
    assert (not os.environ.get("FILEWHEEL_PURE")) == speed.COMPILED
    assert (speed.part is compiled.part) == speed.COMPILED


@pytest.mark.parametrize("pure", ["", "1"])
def test_the_environment_chooses_between_the_two(pure: str) -> None:
    code = "import filewheel.native.compiled as s; print(s.COMPILED, s.part.__module__)"
    env = {**os.environ, "FILEWHEEL_PURE": pure}
    said = subprocess.run([sys.executable, "-c", code], env=env, cwd=REPO, capture_output=True, text=True, check=True)
    assert said.stdout == ("False filewheel.native.loops\n" if pure else "True filewheel.native._loops\n")


def test_loops_that_were_built_for_another_version_are_not_used() -> None:
    code = (
        "import filewheel.native.loops; filewheel.native.loops.INTERFACE += 1\n"
        "import filewheel.native.compiled as s; print(s.COMPILED)"
    )  # fmt: skip
    env = {**os.environ, "FILEWHEEL_PURE": ""}
    # filewheel/__init__ imports speed before anyone could change loops, so a stand-in for the package does without.
    stub = f"import sys, types; p = types.ModuleType('filewheel'); p.__path__ = [{str(REPO / 'filewheel')!r}]\n"
    stub += "sys.modules['filewheel'] = p\n"
    said = subprocess.run([sys.executable, "-c", stub + code], env=env, capture_output=True, text=True, check=True)
    assert said.stdout == "False\n"


SECONDS = st.floats() | st.integers(-(1 << 70), 1 << 70) | st.floats(0, 4e9) | st.integers(0, 4_000_000_000)


@given(st.integers(0, DUE_END_US), st.lists(SECONDS | st.floats(1.7e9, 1.8e9), max_size=5) | st.lists(st.booleans()))
@example(0, [math.nan])
@example(0, [math.inf, 1.0])
@example(0, [1_700_000_000.1, 1_700_000_000.000001])
@example(5, [-0.000005, -0.0000051])
@example(0, [253_402_300_799.999999, 253_402_300_800])
@example(0, [1.0, None])
@example(0, [float(1 << 62)])
def test_dues_are_rounded_alike(base_us: int, seconds: list[Any]) -> None:
    in_c, in_python = both("due_column", base_us, seconds, DUE_END_US)
    assert in_c == in_python
    for value in seconds:
        in_c, in_python = both("due_at", base_us, value, DUE_END_US)
        assert in_c == in_python


class Bytes(bytes):
    """Not exactly bytes: what else it may be, the caller looks at."""


@given(st.lists(PAYLOADS | st.sampled_from(["", bytearray(), Bytes(), None]), max_size=5), st.integers(0, 300))
def test_sizes_are_counted_alike(payloads: list[Any], limit: int) -> None:
    for some in (payloads, tuple(payloads)):
        c, python = both("size_of", some, limit)
        assert c == python


@given(LOWS, SEQS, st.lists(st.tuples(DUES, PAYLOADS, TAILS), max_size=6), st.booleans())
def test_puts_are_packed_alike(low: bytes, seq: int, rows: list[tuple[int, bytes, bytes]], same: bool) -> None:
    dues, payloads, tails = ([row[n] for row in rows] for n in range(3))
    middle: Any = b"\xc0\xcf" + bytes(8) + b"\x00\xa0\x80" if same else tails
    in_c, in_python = both("pack_puts", low, seq, dues, middle, payloads)
    assert in_c == in_python


SEEDS = st.integers(0, (1 << 32) - 1)
OFFSETS = st.integers(0, 1 << 45).map(lambda n: n * 8)
NUMBERS = st.integers(0, 1 << 60)


@given(st.tuples(LOWS, SEQS, DUES, NUMBERS, TAILS, PAYLOADS, SEEDS, OFFSETS, NUMBERS, NUMBERS))
def test_a_frame_with_one_put_is_made_alike(args: tuple[Any, ...]) -> None:
    in_c, in_python = both("put_frame", *args)
    assert in_c == in_python
    assert type(in_c[1]) is MessageId
    assert {in_c[1]: 1}[in_python[1]] == 1  # hashed alike


BODIES = st.binary(max_size=200) | st.sampled_from([1023, 1024, 1025, 200_000]).map(bytes)
COUNTS = st.integers(0, 1 << 31)


@given(st.tuples(BODIES, SEEDS, OFFSETS, NUMBERS, NUMBERS, COUNTS, COUNTS, IDS, IDS))
def test_a_frame_is_sealed_alike(args: tuple[Any, ...]) -> None:
    in_c, in_python = both("seal_frame", *args)
    assert in_c == in_python


@given(st.lists(IDS), st.integers(0, 127))
def test_drops_are_packed_alike(ids: list[bytes], reason: int) -> None:
    in_c, in_python = both("pack_drops", ids, reason)
    assert in_c == in_python == b"".join(pack_drop(i, reason) for i in ids)


RECORDS = MESSAGES.map(pack_message) | st.builds(pack_drop, IDS, st.integers(0, 255)) | VALUES.map(msgpack.packb)


@given(st.lists(RECORDS, max_size=6), st.binary(max_size=3), st.integers(0, 400), IDS, IDS, st.booleans())
@example([], b"\xc1", 0, ID_MIN, ID_END, False)
@example([], b"\xdd\xff\xff\xff\xff", 0, ID_MIN, ID_END, False)
@example([], b"\xdf\xff\xff\xff\xff", 0, ID_MIN, ID_END, False)
@example([], b"\xc6\xff\xff\xff\xff", 0, ID_MIN, ID_END, False)
@example([b"\x93\x02\xc4\x10" + bytes(16) + b"\xcc\x07"], b"", 0, ID_MIN, ID_END, False)
def test_a_body_is_taken_apart_alike(
    records: list[bytes], more: bytes, cut: int, first: bytes, last: bytes, everywhere: bool
) -> None:
    body = b"".join(records) + more
    body = body[: len(body) - cut] if cut < len(body) else body
    in_c, in_python = both("part", body, *((ID_MIN, ID_END) if everywhere else (first, last)))
    assert in_c == in_python


@given(st.binary(max_size=60))
def test_any_bytes_are_taken_apart_alike(body: bytes) -> None:
    in_c, in_python = both("part", body, ID_MIN, ID_END)
    assert in_c == in_python


@given(st.lists(MESSAGES.map(pack_message) | st.builds(pack_drop, IDS, st.just(1))))
def test_ids_are_read_alike(records: list[bytes]) -> None:
    in_c, in_python = both("ids_of", records)
    assert in_c == in_python


@given(st.lists(MESSAGES.map(pack_message)))
def test_what_has_moved_is_seen_alike(records: list[bytes]) -> None:
    in_c, in_python = both("moved", records)
    assert in_c == in_python


FEW_IDS = IDS | st.sampled_from([bytes(16), ID_END])
ALIKE = st.builds(lambda id_, rest: b"\x98\x01\xc4\x10" + id_ + rest, FEW_IDS, st.binary(max_size=3))


@given(st.lists(ALIKE) | st.lists(st.binary(max_size=30)))
def test_records_are_sorted_as_bytes_are(records: list[bytes]) -> None:
    ours = list(records)
    compiled.sort(ours)
    assert ours == sorted(records)
    assert sorted(map(id, ours)) == sorted(map(id, records))


@given(
    st.lists(IDS | st.integers(0, 3 << 26).map(lambda low: low.to_bytes(8, "big") + bytes(8)), max_size=8),
    st.booleans(),
)
def test_messages_are_counted_by_second_alike(ids: list[bytes], as_puts: bool) -> None:
    items = sorted([b"\x98\x01\xc4\x10" + i if as_puts else i for i in ids])
    in_c, in_python = both("count_seconds", items, 4 if as_puts else 0)
    assert in_c == in_python
    assert sum(count for _, count in in_c) == len(ids)


@given(st.lists(MESSAGES, max_size=5), st.integers(0, 5), st.integers(0, 9))
def test_messages_are_made_alike_or_left_to_python(messages: list[Message], start: int, end: int) -> None:
    puts = [pack_message(m) for m in messages]
    made, whole = compiled.plain_messages(puts, start, end, _PLAIN_END)
    left, none_left = loops.plain_messages(puts, start, end, _PLAIN_END)
    assert len(made) == len(left) == len(puts[start:end])
    assert whole == (None not in [m and m.id for m in made])
    assert none_left == (not left)
    for put, message, wanted in zip(puts[start:end], made, messages[start:end], strict=True):
        plain = wanted.root is None and not wanted.headers and wanted.attempt < 128
        assert (message is not None) == plain
        if message is not None:
            assert message == unpack_put(put)
            assert type(message.id) is MessageId
            assert repr(message) == repr(wanted)
            message.headers["own"] = "dict"
            assert not unpack_put(put).headers


@given(MESSAGES.map(pack_message), st.integers(0, 500), st.binary(min_size=1, max_size=2))
def test_a_put_that_is_no_message_is_left_to_python(put: bytes, at: int, over: bytes) -> None:
    changed = put[: at % len(put)] + over + put[at % len(put) + len(over) :]
    for record in (changed, put[: at % len(put)], put + over):
        if len(record) < 21:
            continue
        ((message,), _) = compiled.plain_messages([record], 0, 1, _PLAIN_END)
        if message is not None:
            assert message == unpack_put(record)


def test_a_dead_letters_put_is_left_to_python() -> None:
    put = pack_message(Message(MessageId.make(DEAD_US, 1, 1), b"x"))
    assert compiled.plain_messages([put], 0, 1, _PLAIN_END) == ([None], False)
    with pytest.raises(Damaged):
        unpack_put(put)


@pytest.mark.parametrize("size", [0, 1, 5000, 70_000])
def test_all_of_it_is_written_where_it_belongs(tmp_path: Path, size: int) -> None:
    data = os.urandom(size)
    fd = os.open(tmp_path / "f", os.O_RDWR | os.O_CREAT)
    compiled.write_all(fd, data, 100)
    assert os.pread(fd, size + 200, 0) == (bytes(100) + data if size else b"")
    os.close(fd)


@pytest.mark.parametrize("size", [5000, 70_000])
def test_a_write_that_is_cut_short_is_an_error_with_its_number(tmp_path: Path, size: int) -> None:
    code = (
        "import os, resource, signal, sys; from filewheel.native import _loops\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))\n"
        "fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)\n"
        "try: _loops.write_all(fd, bytes(int(sys.argv[2])), 0)\n"
        "except OSError as exc: print(exc.errno, os.fstat(fd).st_size)"
    )
    run = [sys.executable, "-c", code, str(tmp_path / "f"), str(size)]
    said = subprocess.run(run, cwd=REPO, capture_output=True, text=True, check=True)
    assert said.stdout == f"{errno.EFBIG} 4096\n"


def test_a_closed_descriptor_is_an_error() -> None:
    with pytest.raises(OSError, match="Bad file descriptor"):
        compiled.write_all(-1, b"x", 0)


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("due_column", (0, [1.0])), ("due_at", (0,)), ("pack_puts", (b"", 0, [], b"", [])),
        ("pack_puts", (bytes(16), 0, [1], b"", [1])), ("pack_drops", ((), 1)), ("pack_drops", ([b"short"], 1)),
        ("pack_puts", (bytes(16), 0, [1, 2], b"", [b""])), ("pack_puts", (bytes(16), 0, ["x"], b"", [b""])),
        ("seal_frame", (b"",)), ("seal_frame", (b"", -1, 0, 0, 0, 0, 0, ID_MIN, ID_END)), ("part", (b"", b"", b"")),
        ("ids_of", ((),)), ("ids_of", ([b"short"],)), ("sort", ((),)),
        ("count_seconds", ([b"short"], 0)), ("count_seconds", ([ID_MIN], -1)), ("plain_messages", ((), 0, 1, 0)),
        ("moved", ((),)),
        ("put_frame", (bytes(16), 0, 0, 0, b"", "text", 0, 0, 0, 0)),
        ("put_frame", (bytes(16), 0, -1, 0, b"", b"", 0, 0, 0, 0)),
        ("learn", (int, str)), ("learn", (Message,)), ("write_all", (0, "text", 0)),
    ],
)  # fmt: skip
def test_a_call_that_makes_no_sense_is_an_error(name: str, args: tuple[Any, ...]) -> None:
    with pytest.raises((TypeError, ValueError, OverflowError, AttributeError)):
        getattr(compiled, name)(*args)


def test_the_garbage_collector_does_not_walk_through_messages_that_were_made_in_c() -> None:
    id_ = MessageId.make(10**15, 1, 1)
    ((message,), _) = compiled.plain_messages([pack_message(Message(id_, b"x", "t"))], 0, 1, _PLAIN_END)
    (_, new) = compiled.put_frame(bytes(16), 1, 10**15, 0, pack_tail("", None), b"", 0, 0, 1, 0)
    assert (message.id, message.payload, message.topic, message.headers) == (id_, b"x", "t", {})
    assert not any(map(gc.is_tracked, (message, message.id, message.headers, new)))
    # What it is given later goes with it all the same.
    message.headers["a"] = "b"
    here = weakref.ref(box := Box())
    message.payload = box
    del box, message
    assert here() is None


class Box:
    """Something that can be seen to go."""
