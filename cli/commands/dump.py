"""`dump`: write every message as a JSON line, in the order of ids."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from typing import TextIO

import click

from filewheel.tools.dump import dump, last_line, to_json

from ..failure import Failure
from ..show.output import Output
from ..show.pauses import names
from ..show.text import count, to_line
from ..verb import verb


@verb(
    "dump",
    """
    $ filewheel dump > backup.jsonl
    $ filewheel dump -o backup.jsonl
    $ filewheel dump | gzip > backup.jsonl.gz
    """,
)
@click.option(
    "-o", "--output", "target", default="-", metavar="FILE|-", type=click.Path(),
    help="Where to; a file appears whole or not at all.  [default: stdout]",
)  # fmt: skip
def command(out: Output, target: str) -> None:
    """Write all messages as JSON lines.

    Every pending message and every dead letter is one line. The order is that of the ids: by due time, dead letters
    last. The last line is {"dumped": N}: `load` refuses a dump that was cut off. `load` brings it back exactly: dump,
    load and dump again give the same bytes. Takes no lock; a keeper may be running. FILE can be read by you alone.
    """
    with out.wheel() as wheel, _open(target) as stream:
        stats = wheel.stats()
        number = 0
        unreadable: list[str] = []
        with out.progress("dumping", stats.pending + stats.dead) as progress:
            for number, message in enumerate(dump(wheel, lambda name, why: unreadable.append(f"{name}: {why}")), 1):
                stream(to_line(to_json(message)) + "\n")
                progress.at(number)
        if not unreadable:
            stream(last_line(number) + "\n")
    out.note(f"dumped {count(number, 'message')}")
    if stats.paused:
        out.warn(f"a dump has no pauses; here are paused: {names(stats.paused)}. Pause the wheel that loads it, too")
    for text in unreadable:
        out.warn(text)
    if unreadable:
        what = "the wheel is damaged: the dump lacks what could not be read"
        raise Failure("damaged", what, hint="`filewheel verify` says what that is")


@contextlib.contextmanager
def _open(target: str) -> Iterator[Callable[[str], object]]:
    if target == "-":
        yield _Utf8(sys.stdout).write
        return
    if os.path.exists(target) and not os.path.isfile(target):  # a device or a pipe: it is written to, not replaced
        with open(target, "w", encoding="utf-8", newline="\n") as file:
            yield file.write
        return
    target = os.path.realpath(target)  # a link stays one
    # Temporary file, flush, rename: a reader finds the complete file or none.
    aside = f"{target}.{os.getpid()}.tmp"
    try:
        # The payloads are as private as those of the wheel.
        fd = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with open(fd, "w", encoding="utf-8", newline="\n") as file:
            yield file.write
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, target)
    except BaseException as exc:
        if isinstance(exc, OSError) and exc.filename == aside:
            exc.filename = target
        with contextlib.suppress(OSError):
            os.unlink(aside)
        raise


class _Utf8:
    """Writes UTF-8 in every locale, so that the output does not depend on it."""

    def __init__(self, stream: TextIO) -> None:
        stream.flush()
        self._buffer = stream.buffer

    def write(self, text: str) -> None:
        self._buffer.write(text.encode())
