"""JSON with a checksum as its last field (docs/format.md, 3): wheel.json, roster.json and follows.json.

The checksum covers the bytes before it and the closing brace, so other tools can check the file too.
Invariant: `unseal(seal(fields))` returns equal fields; a truncated or changed file raises ValueError.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from typing import Any

_LINES = (b',\n  "crc32": ', b"\n}")
_COMPACT = (b',"crc32":', b"}")


def seal(fields: Mapping[str, object], *, lines: bool = True) -> bytes:
    """Return the fields as JSON with their checksum: one line per field, or all on one line."""
    mark, end = _LINES if lines else _COMPACT
    body = json.dumps(fields, indent=2 if lines else None, separators=None if lines else (",", ":")).encode()
    return b"%b%b%d%b\n" % (body.removesuffix(end), mark, zlib.crc32(body), end)


def unseal(data: bytes, *, lines: bool = True) -> dict[str, Any]:
    """Return the fields that `seal` wrote. Raises ValueError, also when it is no object or nested too deeply."""
    mark, end = _LINES if lines else _COMPACT
    head, found, tail = data.rpartition(mark)
    if not found or tail != b"%d%b\n" % (zlib.crc32(head + end), end):  # mutant: settings-unchecked roster-unchecked
        raise Unsealed("it fails its checksum")
    try:
        fields = json.loads(head + end)
    except RecursionError as exc:
        raise ValueError("nested too deeply") from exc
    if not isinstance(fields, dict):
        raise ValueError("no JSON object")
    return fields


class Unsealed(ValueError):
    """The checksum is missing or wrong."""
