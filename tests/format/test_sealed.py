"""JSON with a checksum: each byte of it counts, and the bytes are those that wheels on disk have."""

from __future__ import annotations

import zlib

import pytest

from filewheel.format.sealed import Unsealed, seal, unseal

FIELDS = {"format": 1, "id": "x", "list": [1, 2, {"a": None}]}


@pytest.mark.parametrize("lines", [True, False])
def test_what_was_sealed_comes_back(lines: bool) -> None:
    assert unseal(seal(FIELDS, lines=lines), lines=lines) == FIELDS


def test_the_bytes_are_those_of_the_format() -> None:
    assert seal({"a": 1}) == b'{\n  "a": 1,\n  "crc32": 1739184528\n}\n'
    assert seal({"a": 1}, lines=False) == b'{"a":1,"crc32":1444654255}\n'


@pytest.mark.parametrize("lines", [True, False])
def test_a_byte_that_changed_or_is_missing_is_noticed(lines: bool) -> None:
    data = seal(FIELDS, lines=lines)
    for at in range(len(data)):
        with pytest.raises(Unsealed):
            unseal(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :], lines=lines)
        with pytest.raises(Unsealed):
            unseal(data[:at] + data[at + 1 :], lines=lines)


@pytest.mark.parametrize("body", [b"[1", b"[[1]" * 2, b"[" * 100_000])
def test_what_is_no_object_under_a_right_checksum_is_a_value_error(body: bytes) -> None:
    data = body + b',"crc32":' + b"%d}\n" % zlib.crc32(body + b"}")
    with pytest.raises(ValueError, match="Expecting|delimiter|nested|no JSON object"):
        unseal(data, lines=False)
