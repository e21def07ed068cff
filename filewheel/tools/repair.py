"""Repair a wheel: restore a state that verifies, and copy every unreadable byte to quarantine/.

Takes the keeper's lock and works in this order: rewrite a damaged wheel.json from its copy; deal the journals, which
also replaces an unreadable checkpoint; copy the bad ranges of damaged lap and slot files to quarantine/, and rewrite
these files from the frames that verify; enter unlisted unique keys. A damaged roster stays as it is: a repair does not
decide which wheel fires.
Invariant: a repair loses no readable data, and a second repair changes nothing.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field, replace

from filewheel.disk.checkpoint import Covered, write_checkpoint
from filewheel.disk.directory import Directory, write_settings
from filewheel.disk.disk import ForeignFile
from filewheel.disk.keeper_lock import KeeperLock
from filewheel.disk.quarantine import Damage
from filewheel.errors import Damaged, disk_error
from filewheel.format import layout
from filewheel.format.frame import Frame, scan
from filewheel.format.record import ID, SET_ASIDE, pack_drop, records_of, unpack_put
from filewheel.format.settings import parse_settings
from filewheel.keys.upkeep import rebuild_keys
from filewheel.laps.additions import Additions
from filewheel.laps.deal import deal_all
from filewheel.laps.slot import frames
from filewheel.laps.store import Store
from filewheel.laps.window import MISSING, Span, spans_of
from filewheel.tools.pauses import mend_pauses
from filewheel.tools.places import put_all_aside
from filewheel.tools.refusals import check_not_copied, primary_of_copy
from filewheel.tools.verify import Finding, verify

_SETTINGS_BYTES = 65536


@dataclass
class Repair:
    """The result or the plan of a repair."""

    found: list[Finding] = field(default_factory=list)
    done: list[str] = field(default_factory=list)
    bytes_kept: int = 0
    bytes_aside: int = 0
    """Unreadable bytes, now in quarantine/."""
    bytes_lost: int = 0
    """Bytes of missing files: the checkpoint no longer names them, so the loss is accepted."""


def plan(directory: Directory) -> Repair:
    """Return the findings that a repair would fix, without a change."""
    return Repair(found=verify(directory).damage)


def repair(directory: Directory) -> Repair:
    """Repair the wheel. Of a backup only wheel.json and its copy: all else is copied from the primary.

    Raises Locked while a keeper runs, Fenced for a backup with other damage, DiskError.
    """
    result = plan(directory)
    check_not_copied(directory, result.found)
    keeper_lock = KeeperLock(directory)
    keeper_lock.take("repair", wait=False)
    try:
        _mend_settings(directory, result)
        if primary_of_copy(directory) is not None:
            return result
        store = Store(directory)
        with contextlib.closing(store):
            result.done += put_all_aside(directory, store.quarantine)  # first: a deal needs these places
            store.recover()
            if store.checkpoint.doubt:
                result.done.append("the checkpoint was made again from the files that exist")
            deal_all(store)
            for span in spans_of(directory, store.checkpoint):
                _mend_file(store, span, result)
            for damage in store.quarantine.aside:
                result.bytes_aside += damage.end - damage.offset
                if damage.name.startswith(layout.JOURNAL):
                    size = damage.end - damage.offset
                    result.done.append(f"{damage.name}: {size} bytes at offset {damage.offset} put aside")
            result.done += rebuild_keys(directory, store.quarantine)
            result.done += mend_pauses(directory, store.quarantine)
    except OSError as exc:
        raise disk_error(exc, directory.path) from exc
    finally:
        keeper_lock.release()
    return result


def _mend_settings(directory: Directory, result: Repair) -> None:
    for name in (layout.SETTINGS, layout.SETTINGS_COPY):
        try:
            fd = directory.disk.open(name, "r")
        except OSError:
            pass
        else:
            try:
                parse_settings(directory.disk.pread(fd, _SETTINGS_BYTES, 0), name)
                continue
            except Damaged:
                pass
            finally:
                directory.disk.close(fd)
        write_settings(directory.disk, directory.settings, name)
        result.done.append(f"{name} was written again")


def _mend_file(store: Store, span: Span, result: Repair) -> None:
    """Put a new file with the frames that verify in the place of a damaged one."""
    puts, drops, bad = _read_all(store, span)
    senseless = _take_out_senseless(puts, drops)
    if not bad and not senseless:
        result.bytes_kept += span.end
        return
    is_missing = any(damage.reason == MISSING for damage in bad)
    for damage in bad:
        (store.quarantine.note if is_missing else store.quarantine.keep)(damage)
    for put, what in senseless:
        store.quarantine.keep_bytes(Damage(span.name, 0, len(put), what, proven=True), put)
    if span.file is None:
        return
    checkpoint = store.checkpoint.copy()
    checkpoint.deal += 1
    new = replace(span.file, made=checkpoint.deal)
    data = frames(sorted(puts), sorted(drops), seed=store.dir.seed(new.name), offset=0, number=checkpoint.deal)
    files = new.among(checkpoint)
    del files[new.key]
    with contextlib.closing(Additions(store.dir)) as added:
        if data:
            added.append(new.name, 0, data)
            files[new.key] = Covered(len(data), new.made)
        added.sync()
    write_checkpoint(store.disk, checkpoint, store.dir.seed)
    store.checkpoint = checkpoint
    store.removal.unlink(span.name)
    result.bytes_kept += len(data)
    if is_missing:
        result.bytes_lost += span.end
        result.done.append(f"{span.name}: the file is missing, with {span.end} bytes; it is not named any more")
        return
    aside = f"{len(bad)} unreadable ranges put aside" if bad else ""
    aside += (", " if bad else "") + f"{len(senseless)} records that are no message put aside" if senseless else ""
    result.done.append(f"{span.name}: {len(puts)} messages kept, {aside}")


def _take_out_senseless(puts: set[bytes], drops: set[bytes]) -> list[tuple[bytes, str]]:
    """Remove invalid puts, and end each by a drop; return them with their faults."""
    found = []
    for put in sorted(puts):
        try:
            unpack_put(put)
        except Damaged as exc:
            found.append((put, exc.what))
            drops.add(pack_drop(put[ID], SET_ASIDE))
    puts.difference_update(put for put, _ in found)
    return found


def _read_all(store: Store, span: Span) -> tuple[set[bytes], set[bytes], list[Damage]]:
    puts: set[bytes] = set()
    drops: set[bytes] = set()
    bad: list[Damage] = []
    try:
        fd = store.disk.open(span.name, "r")
    except FileNotFoundError:
        return puts, drops, [Damage(span.name, 0, span.end, MISSING, proven=True)]
    except ForeignFile:
        # Any other error is raised: it may be transient, and must not replace the file by an empty one.
        return puts, drops, [Damage(span.name, 0, span.end, "cannot be opened", proven=True)]
    try:
        size = store.disk.size(fd)
        if size + 7 < span.end:
            bad.append(Damage(span.name, size, span.end, "the file is too short", proven=True))
        for item in scan(store.disk, fd, 0, min(size, span.end), store.dir.seed(span.name)):
            if isinstance(item, Frame):
                try:
                    found, dropped = records_of(item)
                except Damaged as exc:
                    bad.append(Damage(span.name, item.offset, item.end, exc.what, proven=True))
                    continue
                puts.update(found)
                drops.update(dropped)
            else:
                bad.append(Damage(span.name, item.offset, item.end, item.reason, proven=True))
    finally:
        store.disk.close(fd)
    return puts, drops, bad
