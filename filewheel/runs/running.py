"""The file `running.json`: the messages that the keeper has claimed, for readers in other processes.

The keeper's process replaces it by rename, about once a second while something is claimed, and does not flush it. It
names the keeper by the name that this has in `begun`, so a reader knows whether the present keeper wrote it. That
file's table says which messages have begun, without delay; this one adds where and since when.
Format: docs/format.md, 13.
Invariant: of a keeper that has ended, nothing is reported as running.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Sequence
from typing import Any

from filewheel.disk.begun import GENERATION_BYTES, LIFE_BYTES, SLOT_BYTES, read_table
from filewheel.disk.directory import Directory
from filewheel.disk.disk import ForeignFile
from filewheel.disk.keeper_lock import holder
from filewheel.disk.replace import replace_file
from filewheel.errors import BadArgument, Damaged, disk_error, disk_errors
from filewheel.format import layout
from filewheel.message import MessageId
from filewheel.runs.run import KINDS, Place, Run, Running, count_of, text_of

LISTED_MAX = 1000
_BYTES_MAX = 8 << 20


def render(runs: Sequence[Run], claimed: int, begun: int, life: bytes) -> str:
    """Return the file's content, without its time: equal for equal runs."""
    fields = {"pid": os.getpid(), "keeper": life.hex(), "claimed": claimed, "begun": begun}
    return f'{json.dumps(fields)[1:-1]}, "runs": [{", ".join(map(_render_run, runs))}]'


def _render_run(run: Run) -> str:
    fields: dict[str, Any] = {
        "id": str(run.id),
        "first": str(run.first_id),
        "topic": run.topic,
        "key": run.key,
        "due_us": run.due_us,
        "attempt": run.attempt,
    }
    if run.place is not None:
        fields |= {"begun_us": run.begun_us, "where": run.place.kind, "name": run.place.name, "pid": run.place.pid}
    return json.dumps(fields)


def write_running(directory: Directory, content: str, now_us: int) -> None:
    """Replace the file. Not durable. Raises OSError."""
    data = f'{{"at_us": {now_us}, {content}}}\n'.encode()
    try:
        replace_file(directory.disk, layout.RUNNING, layout.RUNNING_TMP, data, flush=False)
    except OSError:
        with contextlib.suppress(OSError):  # free the space of a partial file
            directory.disk.unlink(layout.RUNNING_TMP)
        raise


def remove_running(directory: Directory) -> None:
    """Remove the file, when the keeper ends. Never raises OSError."""
    with contextlib.suppress(OSError):
        directory.disk.unlink(layout.RUNNING)


def read_running(directory: Directory, is_pending: Callable[[bytes], bool]) -> Running:
    """Return the claimed messages of the present keeper; an empty list without one. Takes no lock.

    `is_pending` is asked by `Running.state_of`.

    Raises Damaged when its file is not one that a keeper wrote, DiskError when a file cannot be read.
    """
    found = Running()
    found._is_pending = is_pending
    with disk_errors(directory.path):
        data = read_table(directory.disk)
    keeper = holder(directory)
    if keeper is None:
        return found
    found.has_keeper, found.keeper_pid, found.keeper_namespace = True, keeper.pid, keeper.namespace
    life = data[:LIFE_BYTES]
    if data:
        found._table = _ids_in(data[GENERATION_BYTES:])
    fields = _fields_of(directory)
    # Without a table only the number of the process tells whose list it is.
    if fields is None or (fields["keeper"] != life.hex() if life else fields["pid"] != keeper.pid):
        return found
    found.at_us, found.claimed, found.begun = fields["at_us"], fields["claimed"], fields["begun"]
    table = found._table
    found += [run for run in fields["runs"] if table is None or run.begun_us is None or run.id in table]
    return found


def read_begun(directory: Directory) -> frozenset[bytes]:
    """Return the ids that the present keeper has begun, and of some that it has settled since. Raises DiskError."""
    with disk_errors(directory.path):
        data = read_table(directory.disk)
    return _ids_in(data[GENERATION_BYTES:]) if data and holder(directory) is not None else frozenset()


def _ids_in(table: bytes) -> frozenset[bytes]:
    """Return the ids of a table of begins."""
    ids = {table[at : at + SLOT_BYTES] for at in range(0, len(table) - SLOT_BYTES + 1, SLOT_BYTES)}
    return frozenset(ids - {bytes(SLOT_BYTES)})


def _fields_of(directory: Directory) -> dict[str, Any] | None:
    """Read and check the file; None when there is none. Raises Damaged, DiskError."""
    place = directory.place(layout.RUNNING)
    disk = directory.disk
    try:
        fd = disk.open(layout.RUNNING, "r")
    except FileNotFoundError:
        return None
    except ForeignFile as exc:
        raise Damaged("not a regular file", path=place, hint="remove it; it is written again") from exc
    except OSError as exc:
        raise disk_error(exc, place) from exc
    try:
        with disk_errors(place):
            data = disk.pread(fd, min(disk.size(fd), _BYTES_MAX), 0)
    finally:
        disk.close(fd)
    try:
        found = json.loads(data)
        fields = {name: count_of(found[name]) for name in ("at_us", "pid", "claimed", "begun")}
        return {**fields, "keeper": text_of(found["keeper"]), "runs": [_run_of(one) for one in found["runs"]]}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, BadArgument) as exc:
        # A power cut may leave an empty file or zeros.
        raise Damaged("it is no list of runs", path=place, hint="remove it; the keeper writes it again") from exc


def _run_of(found: Any) -> Run:
    key = found["key"]
    begun_us = place = None
    if "begun_us" in found:
        begun_us, kind, pid = count_of(found["begun_us"]), found["where"], found["pid"]
        if kind not in KINDS:
            raise ValueError("no place")
        place = Place(kind, text_of(found["name"]), None if pid is None else count_of(pid))
    return Run(
        MessageId.parse(text_of(found["id"])),
        MessageId.parse(text_of(found["first"])),
        text_of(found["topic"]),
        None if key is None else text_of(key),
        count_of(found["due_us"]),
        count_of(found["attempt"]),
        begun_us,
        place,
    )
