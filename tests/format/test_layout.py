"""Names: what is made is parsed back, everything else is foreign."""

from __future__ import annotations

import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from filewheel.format import layout
from filewheel.message import base32

WRITERS = st.integers(0, (1 << 40) - 1).map(lambda n: base32(n, 8))
LAPS = st.integers(0, layout.LAP_END - 1)
SECONDS = st.integers(0, layout.SECOND_END - 1)


def last(name: str) -> str:
    """Return the last part of a name."""
    return name.rpartition("/")[2]


@given(WRITERS, st.integers(1, 10**12 - 1))
def test_a_segments_name_gives_back_its_writer_and_number(writer: str, n: int) -> None:
    name = layout.segment(writer, n)
    assert name.startswith("journal/")
    assert layout.parse_segment(last(name)) == (writer, n)
    assert layout.is_segment_tmp(last(layout.segment_tmp(writer, n)))
    assert not layout.is_segment_tmp(last(name))
    assert layout.parse_segment(last(layout.segment_tmp(writer, n))) is None


@given(LAPS, SECONDS, st.integers(0, layout.DEAL_END - 1))
def test_laps_and_slots_give_back_their_numbers_and_the_deal_that_made_them(lap: int, second: int, made: int) -> None:
    assert layout.parse_lap_file(last(layout.lap_file(lap, made))) == (lap, made)
    assert layout.parse_lap_dir(last(layout.lap_dir(lap))) == lap
    assert layout.parse_slot(last(layout.slot(lap, second, made))) == (second, made)
    assert layout.slot(lap, second, made).startswith(layout.lap_dir(lap) + "/")


@given(WRITERS, WRITERS, st.integers(1, 10**7), st.integers(1, 10**7))
def test_segments_of_one_writer_sort_by_number_up_to_a_million(a: str, b: str, m: int, n: int) -> None:
    if max(m, n) < 10**6:
        assert (layout.segment(a, m) < layout.segment(b, n)) == ((a, m) < (b, n))


@given(st.text(max_size=30))
def test_whatever_is_parsed_is_what_would_be_made(text: str) -> None:
    segment = layout.parse_segment(text)
    lap_file, lap_dir, slot = layout.parse_lap_file(text), layout.parse_lap_dir(text), layout.parse_slot(text)
    assert segment is None or layout.segment(*segment) == f"journal/{text}"
    assert lap_file is None or layout.lap_file(*lap_file) == f"laps/{text}"
    assert lap_dir is None or layout.lap_dir(lap_dir) == f"laps/{text}"
    assert slot is None or last(layout.slot(0, *slot)) == text
    history = layout.parse_history(text)
    assert history is None or layout.history(history) == f"history/{text}"


@given(st.integers(1, 10**12 - 1), st.binary(min_size=16, max_size=16), st.binary(min_size=8, max_size=8))
def test_names_of_histories_and_of_requests_give_back_what_they_are_made_of(n: int, id_: bytes, life: bytes) -> None:
    assert layout.parse_history(last(layout.history(n))) == n
    text = base32(int.from_bytes(id_, "big"), 26)
    assert layout.parse_kill(last(layout.kill(text, life, b"1234")) + ".retry") == (text, life, "retry")


HOSTILE = [
    *("", ".", "..", "/", "a", "-1", "+1", "01", "1.0", "1e3", " 1", "1 ", "1\n", "1_000", "0x1", "٣", "１"),
    *("1" * 13, "../1", "1/2", "1\x00", "1.lap.lap", ".lap", "-1.lap", "01.lap", "1.LAP", "1.lap\n", "1.slot "),
    *("1.slots", "00.slot", "1.slot.tmp", ".1.slot", "AAAAAAAA-1.log", "AAAAAAAA-00001.log", "AAAAAAAA-0000001.log"),
    *("AAAAAAAA-1000000000000.log", "AAAAAAA-000001.log", "AAAAAAAAA-000001.log", "aaaaaaaa-000001.log"),
    *("AAAAAAAI-000001.log", "AAAAAAAU-000001.log", "AAAAAAAA-00000a.log", "AAAAAAAA-000001.log.gz"),
    *(
        "AAAAAAAA-000001.log~",
        "AAAAAAAA_000001.log",
        "AAAAAAAA-00000１.log",
        "AAAAAAAA-000001.log\n",
        "../AAAAAAAA-000001.log",
    ),
    *("1.jsonl", "0000001.jsonl", "000000.jsonl", "000001.jsonl\n", "1000000000000.jsonl", "00000１.jsonl"),
    *(
        "0" * 26 + "-" + "0" * 16 + "-" + "0" * 8 + end
        for end in ("", ".", ".kill", ".cancel\n", ".retry.tmp", "/.cancel")
    ),
    *(
        text + "-" + "0" * 16 + "-" + "0" * 8 + ".cancel"
        for text in ("8" + "0" * 25, "0" * 25, "0" * 27, "0" * 25 + "U")
    ),
    *("0" * 26 + "-" + "0" * 15 + "-" + "0" * 8 + ".cancel", "0" * 26 + "-" + "G" * 16 + "-" + "0" * 8 + ".cancel"),
    *("checkpoint", "wheel.json", "\udcff.lap"),
]


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_name_is_no_file_of_ours(name: str) -> None:
    assert layout.parse_segment(name) is None
    assert layout.parse_lap_file(name) is None
    assert layout.parse_slot(name) is None
    assert layout.parse_lap_dir(name) is None
    assert not layout.is_segment_tmp(name)
    assert layout.parse_history(name) is None
    assert layout.parse_kill(name) is None


def test_a_segment_with_number_0_is_no_file_of_ours() -> None:
    assert layout.parse_segment("AAAAAAAA-000000.log") is None


@pytest.mark.parametrize(
    "name", ["AAAAAAAA-000001.tmp", ".AAAAAAAA-000001.log", ".AAAAAAAA-000001.tmp~", "..tmp", ".x.tmp"]
)
def test_a_name_that_only_looks_temporary_is_not_swept(name: str) -> None:
    assert not layout.is_segment_tmp(name)


@given(st.binary(min_size=16, max_size=16), WRITERS, st.integers(1, 10**6))
def test_a_seed_is_the_crc_of_salt_and_name_together(salt: bytes, writer: str, n: int) -> None:
    name = layout.segment(writer, n)
    assert layout.seed(salt, name) == zlib.crc32(salt + name.encode())


def test_the_files_of_one_wheel_have_seeds_of_their_own() -> None:
    salt = bytes(range(16))
    names = [layout.slot(2_000_000, s, 7) for s in range(1_800_000_000, 1_800_005_000)]
    names += [layout.lap_file(n, 7) for n in range(5_000)] + [layout.segment("AAAAAAAA", n) for n in range(1, 5_000)]
    names += [layout.CHECKPOINT]
    assert len({layout.seed(salt, name) for name in names}) == len(names)


@pytest.mark.parametrize("number", [layout.SECOND_END, 10**12 - 1])
def test_a_number_later_than_any_due_is_foreign(number: int) -> None:
    assert layout.parse_slot(f"{number}.slot") is None
    assert layout.parse_lap_file(f"{number}.lap") is None
    assert layout.parse_lap_dir(str(number)) is None
    assert layout.parse_slot(f"{layout.SECOND_END - 1}.slot") == (layout.SECOND_END - 1, 0)


@pytest.mark.parametrize("text", ["5-0", "5-07", "5--7", "5-", "-7", "5-7-7", f"5-{layout.DEAL_END}", "5-+7", "5- 7"])
def test_a_deal_that_is_written_otherwise_makes_a_foreign_name(text: str) -> None:
    assert layout.parse_slot(f"{text}.slot") is None
    assert layout.parse_lap_file(f"{text}.lap") is None
