"""docs/format.md is decoded as it stands: the example's bytes, the table that explains them, the numbers in the text.

The decoder (tests/support_reader.py) is written from the page alone; filewheel is asked only at the end, to agree.
"""

from __future__ import annotations

import ast
import hashlib
import json
import re
import zlib
from dataclasses import fields
from pathlib import Path

import pytest

from filewheel.format import layout
from filewheel.format.frame import BODY_BYTES_MAX, FORMAT, HEADER_BYTES, Scanner, seal
from filewheel.format.record import REASONS, pack_message
from filewheel.keeper import Keeper
from filewheel.message import DEAD_US, Message, MessageId
from filewheel.roster.roster import Member, Roster
from filewheel.wheel import Wheel
from tests import support_reader as reader
from tests.support import REPO

LIBRARY, DOCS = REPO / "filewheel", REPO / "docs"
DOC = (DOCS / "format.md").read_text(encoding="utf-8")
SETS = (DOCS / "format-sets.md").read_text(encoding="utf-8")
SALT = bytes.fromhex("000102030405060708090a0b0c0d0e0f")
NAME = "journal/PRDCR001-000001.log"


def hexdump() -> tuple[int, bytes]:
    """Return (offset, bytes) of the example's hex block."""
    (block,) = re.findall(r"```hexdump\n(.*?)```", DOC, re.S)
    rows = [line.split() for line in block.splitlines()]
    return int(rows[0][0], 16), bytes.fromhex("".join("".join(row[1:]) for row in rows))


def table() -> list[tuple[int, bytes, str, str]]:
    """Return the rows that explain the example: offset, bytes, field, value."""
    part = DOC.partition("## 15. A worked example")[2].partition("\n## ")[0]
    rows = []
    for line in part.splitlines():
        cells = [c.strip() for c in line.strip("|").split("|")]
        if line.startswith("|") and cells[0].isdecimal():
            rows.append((int(cells[0]), bytes.fromhex(cells[1].strip("`")), cells[2], cells[3].strip("`")))
    return rows


def test_the_table_of_the_example_covers_every_byte_of_its_hexdump() -> None:
    start, data = hexdump()
    at = start
    for offset, piece, what, _ in table():
        assert offset == at, what
        at += len(piece)
    assert b"".join(piece for _, piece, _, _ in table()) == data


def test_a_reader_written_from_the_page_decodes_the_example_to_the_values_in_its_table() -> None:
    start, data = hexdump()
    frame = reader.frame_at(bytes(start) + data, start, reader.seed_of(SALT, NAME))
    assert frame is not None
    (record,) = reader.records(frame.body)
    kind, id_, root, enqueued, attempt, topic, headers, payload = record
    found = {
        "header sum": f"0x{frame.head_sum:08x}",
        "size": str(frame.size),
        "body sum": f"0x{frame.body_sum:08x}",
        "number": str(frame.number),
        "synced": str(frame.synced),
        "puts": str(frame.puts),
        "drops": str(frame.drops),
        "first": reader.id_text(frame.first),
        "last": reader.id_text(frame.last),
        "kind": str(kind),
        "id": reader.id_text(id_),
        "root": "nil" if root is None else reader.id_text(root),
        "enqueued": str(enqueued),
        "attempt": str(attempt),
        "topic": topic,
        "headers": json.dumps(headers),
        "payload": payload.decode(),
    }
    assert found == {what: value for _, _, what, value in table() if value}
    assert frame.end == start + len(data)
    assert f"due {reader.due_of(id_)} " in DOC


def test_the_seeds_that_the_example_states_are_those_of_its_salt_and_name() -> None:
    seed = reader.seed_of(SALT, NAME)
    assert f"crc32(salt)        = 0x{zlib.crc32(SALT):08x}" in DOC
    assert f'crc32("{NAME}", 0x{zlib.crc32(SALT):08x}) = 0x{seed:08x}' in DOC
    assert f"= seed ^ (128 / 8) = 0x{seed ^ 16:08x}" in DOC
    assert zlib.crc32(b"123456789") == 0xCBF43926


def test_a_crc_continued_from_a_value_is_that_of_the_bytes_with_anything_of_that_value_before_them() -> None:
    assert zlib.crc32(b"after", zlib.crc32(b"before")) == zlib.crc32(b"beforeafter")
    assert zlib.crc32(b"", 12345) == 12345


def test_the_wheel_json_on_the_page_satisfies_the_checksum_rule_on_the_page() -> None:
    (block,) = re.findall(r"```json\n(.*?)```", DOC, re.S)
    assert reader.settings(block.encode())["format"] == FORMAT
    with pytest.raises(AssertionError):
        reader.settings(block.replace("900", "901").encode())


def test_filewheel_writes_the_example_byte_for_byte() -> None:
    start, data = hexdump()
    id_ = MessageId.parse("01K52WPZBJM0PRDCR001000002")
    put = pack_message(Message(id_, b"hello", "mail", {"to": "ann"}, 0, 1_800_000_000_000_000))
    seed = layout.seed(SALT, NAME)
    assert seal(put, seed=seed, offset=start, number=2, synced=1, puts=1, drops=0, first=id_, last=id_) == data
    (frame,) = Scanner(lambda size, at: (bytes(start) + data)[at : at + size], start, start + len(data), seed)
    assert frame.end == start + len(data)


def test_the_numbers_on_the_page_are_those_of_the_code() -> None:
    assert DOC.startswith(f"# The format of a wheel on disk, version {FORMAT}\n")
    assert HEADER_BYTES == reader.HEADER.size == 72
    assert f"{BODY_BYTES_MAX:,}" in DOC
    assert f"{DEAD_US:,}" in DOC
    assert ", ".join(f"{n} {name}" for n, name in REASONS.items()) in DOC


def test_a_reader_written_from_the_page_finds_a_unique_key_in_the_index(wheel: Wheel, wheel_dir: Path) -> None:
    id_ = wheel.enqueue(b"x", delay=60, key="report")
    Keeper(wheel_dir).close()  # a deal enters it
    salt = bytes.fromhex(reader.settings((wheel_dir / "wheel.json").read_bytes())["salt"])
    hash_ = hashlib.blake2b(b"report", digest_size=16, key=salt).digest()
    name = f"keys/{hash_[0]:02x}.keys"
    entry = bytes.fromhex("F546574B") + hash_ + id_
    entry += zlib.crc32(hash_ + id_, reader.seed_of(salt, name)).to_bytes(4, "little")
    assert (wheel_dir / name).read_bytes() == entry


def keys_explained_after(words: str) -> set[str]:
    """Return the keys in the first column of the first table after some words."""
    (_, part) = (DOC + SETS).split(words)
    rows = re.match(r".*?\n\| key \|[^\n]*\n\| --- [^\n]*\n((?:\|[^\n]*\n)+)", part, re.S)
    assert rows is not None
    return {key for row in rows[1].splitlines() for key in re.findall(r"`([^`]+)`", row.split("|")[1])}


@pytest.mark.parametrize(
    ("words", "kind", "version"),
    [
        ("\n**roster.json.** ", Roster, {"roster"}),
        ("\nA member:\n", Member, set()),
    ],
)
def test_the_page_explains_each_field_that_is_written_and_no_other(words: str, kind: type, version: set[str]) -> None:
    assert keys_explained_after(words) == version | {field.name for field in fields(kind)}


def test_each_file_that_the_code_names_is_in_the_grammar_of_the_directory() -> None:
    grammar = set(re.findall(r"[\w.]+", DOC.partition("## 2. The directory")[2].split("```")[1]))
    names = {v for k, v in vars(layout).items() if k.isupper() and not k.startswith("_") and isinstance(v, str)}
    assert {layout.PROBE, layout.ROSTER} <= names
    assert not {name.rpartition("/")[2] for name in names} - grammar


def test_every_link_within_the_page_has_its_heading() -> None:
    slugs = {re.sub(r"[^\w -]", "", h.lower()).replace(" ", "-") for h in re.findall(r"^## (.*)$", DOC, re.M)}
    links = set(re.findall(r"\]\(#([^)]+)\)", DOC))
    assert links
    assert links <= slugs


def chapters() -> dict[str, set[int]]:
    """The files of the library that chapters name as their code, with the numbers of these chapters."""
    found: dict[str, set[int]] = {}
    for number, files in re.findall(r"^## (\d+)\. .*\n\nCode: (.*)\.$", DOC, re.MULTILINE):
        for file in re.findall(r"`([\w/]+\.py)`", files):
            found.setdefault(file, set()).add(int(number))
    return found


def test_each_file_of_the_format_has_a_chapter() -> None:
    files = {f"format/{p.name}" for p in (LIBRARY / "format").glob("*.py") if not p.name.startswith("_")}
    assert files <= chapters().keys()


@pytest.mark.parametrize("file", sorted(chapters()))
def test_a_file_names_the_chapters_that_name_it(file: str) -> None:
    text = ast.get_docstring(ast.parse((LIBRARY / file).read_text(encoding="utf-8"))) or ""
    assert {int(n) for n in re.findall(r"docs/format\.md, (\d+)", text)} == chapters()[file]
