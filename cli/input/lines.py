"""Input lines: read with bounded memory, and spooled in a temporary file until all are checked.

A line is the bytes up to a newline, without it; the last line needs none. A line longer than any message is not read
into memory.
Invariant: the error for a bad line names its number.
"""

from __future__ import annotations

import io
import sys
import tempfile
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Any, BinaryIO, Protocol, Self

import click
import msgpack

from filewheel import BadArgument, MessageId
from filewheel.tools.dump import is_last_line, parse_line

from ..failure import Failure

_SKIP_BYTES = 1 << 16
_SPOOL_BYTES = 8 << 20


def stdin() -> BinaryIO:
    """Return stdin as bytes; an empty one where it was closed before the start."""
    if sys.stdin is None:
        return io.BytesIO()
    return sys.stdin.buffer


class Lines(Protocol):
    """A stream of bytes, or a part of one."""

    def readline(self, limit: int, /) -> bytes:
        """Return the next line, or the part of it up to a limit; the empty string at the end."""


def read_lines(stream: Lines, limit: int) -> Iterator[tuple[int, bytes | None]]:
    """Yield each line with its number, from 1; None in the place of a line of more than `limit` bytes."""
    number = 0
    while line := stream.readline(limit + 1):
        number += 1
        if line.endswith(b"\n"):
            yield number, line[:-1]
        elif len(line) <= limit:
            yield number, line
        else:
            while line and not line.endswith(b"\n"):
                line = stream.readline(_SKIP_BYTES)
            yield number, None


def parse_object(line: bytes | None, number: int) -> dict[str, Any]:
    """Read a line as a JSON object. Raises BadArgument, which names the line."""
    if line is None:
        raise BadArgument(f"line {number}: longer than any message can be")
    try:
        return parse_line(line, number)
    except RecursionError:
        raise BadArgument(f"line {number}: nested too deeply") from None


class Spool:
    """Rows stored until all are checked: in memory, from a few MiB on disk."""

    def __init__(self) -> None:
        self._file = tempfile.SpooledTemporaryFile(max_size=_SPOOL_BYTES)
        self._pack = msgpack.Packer(autoreset=True, use_bin_type=True).pack
        self.count = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def add(self, row: object) -> None:
        """Store one row."""
        try:
            self._file.write(self._pack(row))
        except OSError as exc:
            raise Failure(
                "failed",
                "the input has more than 8 MiB, and is kept in the temporary directory until it is checked: "
                f"{exc.strerror}",
                hint="set TMPDIR to a directory with room, or give it in parts",
            ) from exc
        self.count += 1

    def rows(self) -> Iterator[Any]:
        """Yield every row, in order."""
        self._file.seek(0)
        yield from msgpack.Unpacker(self._file, max_buffer_size=0)


# -- ids ------------------------------------------------------------------------------------------------------


def read_ids(words: Iterable[str]) -> list[MessageId]:
    """Read ids from the command line; `-` stands for those on stdin, one a line, or JSON lines with an `id`.

    Each id is returned once, in order. Raises BadArgument.
    """
    found: dict[MessageId, None] = {}
    for word in words:
        if word == "-":
            found.update(dict.fromkeys(_ids_on_stdin()))
        else:
            found[MessageId.parse(word)] = None
    return list(found)


def check_filters(**filters: str | None) -> None:
    """Raise UsageError for an empty filter of what is to be changed: a variable that was not set chooses nothing."""
    for name, text in filters.items():
        if text == "":
            raise click.UsageError(f"--{name} is empty, so nothing says which; leave it out for all")


def _ids_on_stdin() -> Iterator[MessageId]:
    for number, line in read_lines(stdin(), 1 << 30):
        text = (line or b"").strip()
        if not text:
            continue
        try:
            fields = parse_object(text, number) if text.startswith(b"{") else {"id": text.decode("ascii", "replace")}
            if not is_last_line(fields):
                yield MessageId.parse(str(fields.get("id", "")))
        except BadArgument as exc:
            what = exc.what if exc.what.startswith("line ") else f"line {number}: {exc.what}"
            raise BadArgument(what, hint=exc.hint) from None


def chunks(items: list[MessageId], size: int) -> Iterator[list[MessageId]]:
    """Yield a list in pieces."""
    for start in range(0, len(items), size):
        yield items[start : start + size]
