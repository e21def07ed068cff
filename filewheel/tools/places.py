"""Foreign objects in the place of a file that the library needs: a pipe, a link, a directory instead of a file.

They are never opened for writing and never followed, so every call that needs the file fails until the object is
removed. `verify` reports it, and `repair` renames it into quarantine/.
Invariant: a missing name is not a finding; the first use makes each of these files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from filewheel.disk.directory import Directory
from filewheel.disk.disk import NO_DIRECTORY
from filewheel.disk.quarantine import NOT_DIRECTORY, NOT_FILE, Quarantine, is_foreign, put_aside
from filewheel.format import layout
from filewheel.keys.check import Add, unreadable

REPAIR = "stop the keeper, then `filewheel repair` puts it aside"
BY_HAND = "stop every keeper, then remove it by hand: it holds no data of filewheel"
_KEYS = "messages with a unique key can be neither enqueued nor moved nor tried again"
_IDS = "messages can be neither cancelled nor moved nor tried again"
_DIRECTORIES = {layout.KEYS: _KEYS, layout.IDS: _IDS}
_FILES = {
    layout.LOCK: "no keeper can start, and no repair",
    layout.CHECKPOINT_TMP: "nothing can be dealt, and the journals grow",
    layout.ROSTER_LOCK: "the set cannot be changed",
    layout.PROMOTE_LOCK: "this wheel cannot be promoted",
    layout.PAUSED_LOCK: "nothing can be paused or resumed",
    layout.PAUSED_TMP: "nothing can be paused or resumed",
}


def check_places(directory: Directory, add: Add) -> None:
    """Report foreign objects in the place of a file. That of the checkpoint is reported when it is read.

    Raises OSError for a transient error.
    """
    for name, what, cost in _foreign(directory, add):
        add("damage", name, 0, 0, f"{what}: {cost} until it is removed", BY_HAND if name == layout.LOCK else REPAIR)


def put_all_aside(directory: Directory, quarantine: Quarantine) -> list[str]:
    """Rename all foreign objects into quarantine/; return reports. Files of keys are rebuilt instead.

    The caller holds the keeper's lock, so that file is not foreign. Raises OSError.
    """
    names = [(name, what) for name, what, _ in _foreign(directory) if not _is_key_file(name)]
    if is_foreign(directory, layout.CHECKPOINT):
        names.append((layout.CHECKPOINT, NOT_FILE))
    return [put_aside(directory, quarantine, name, what) for name, what in names]


def _is_key_file(name: str) -> bool:
    parent, _, last = name.rpartition("/")
    return parent == layout.KEYS and layout.parse_key_file(last) is not None


def _foreign(directory: Directory, add: Add | None = None) -> Iterator[tuple[str, str, str]]:
    """Yield (name, kind of object, consequence); `add` gets unreadable names."""
    for name, cost in _names(directory):
        try:
            if is_foreign(directory, name):
                yield name, NOT_FILE, cost
        except OSError as exc:
            says = unreadable(exc)
            if add is not None and not _is_key_file(name):  # those are read, and reported, elsewhere
                add("damage", name, 0, 0, says, "")
    for name, cost in _DIRECTORIES.items():
        try:
            directory.disk.listdir(name)
        except FileNotFoundError:
            pass
        except NotADirectoryError:
            yield name, NOT_DIRECTORY, cost


def _names(directory: Directory) -> Iterator[tuple[str, str]]:
    """Yield the names of the checked files, and the consequence of a foreign object there."""
    yield from _FILES.items()
    is_ours: Callable[[str], bool]
    for parent, is_ours, some in (
        (layout.KEYS, lambda last: layout.is_key_spare(last) or layout.parse_key_file(last) is not None, _KEYS),
        (layout.IDS, layout.is_id_lock, _IDS),
    ):
        try:
            names = directory.disk.listdir(parent)
        except NO_DIRECTORY:
            continue
        for last in sorted(filter(is_ours, names)):
            yield f"{parent}/{last}", some
