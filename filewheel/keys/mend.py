"""Rebuilds unreadable files of unique keys from the pending messages, for `repair` and for a forced promotion.

Invariant: the lock of a file is held until its keys are entered again, so no key of a pending message is taken twice.
"""

from __future__ import annotations

from filewheel.disk.directory import Directory
from filewheel.disk.keeper_lock import KeeperLock
from filewheel.disk.locks import WAIT_S, Held
from filewheel.disk.quarantine import NOT_DIRECTORY, NOT_FILE, Quarantine, is_foreign, items, put_aside
from filewheel.format import layout
from filewheel.keys.check import Unlisted
from filewheel.keys.index import Keys
from filewheel.lookup.snapshot import Snapshot
from filewheel.message import KEY

_TOO_LONG = "too long"


def unreadable_keys(directory: Directory) -> list[tuple[str, str]]:
    """Return (name, what is wrong) of everything in keys/ that makes calls for messages with a unique key fail.

    Cost: an open of each file there. Raises OSError.
    """
    try:
        names = sorted(directory.disk.listdir(layout.KEYS))
    except FileNotFoundError:
        return []
    except NotADirectoryError:
        return [(layout.KEYS, NOT_DIRECTORY)]
    keys, found = Keys(directory), []
    for last in names:
        name, bucket = f"{layout.KEYS}/{last}", layout.parse_key_file(last)
        if bucket is None and not layout.is_key_spare(last):
            continue
        if is_foreign(directory, name):
            found.append((name, NOT_FILE))
        elif bucket is not None and keys.is_too_long(bucket):
            found.append((name, _TOO_LONG))
    return found


def mend_keys(directory: Directory, role: str) -> list[str]:
    """Take the lock of the keeper, and put aside or make again what `unreadable_keys` finds; return what was done.

    Durable on return. Raises Locked while another process has that lock, OSError, DiskError. Cost: a walk over
    everything that is pending, if there is or was such a file.
    """
    keeper_lock = KeeperLock(directory)
    keeper_lock.take(role, wait=False)
    try:
        quarantine, done = Quarantine(directory), []
        for name, what in unreadable_keys(directory):
            if layout.parse_key_file(name.rpartition("/")[2]) is None:
                done.append(put_aside(directory, quarantine, name, what))
        done += mend_key_files(directory, quarantine)
        # All of keys/ may be aside. A crash leaves a file aside that is not made again, and a note of it.
        if any(str(item.get("name", layout.KEYS)).startswith(layout.KEYS) for item in items(directory)):
            entered = enter_unlisted(directory)  # mutant: keys-aside-forgotten
            done += [f"{entered} keys were entered again"] if entered else []
        return done
    finally:
        keeper_lock.release()


def enter_unlisted(directory: Directory) -> int:
    """Enter the keys of pending messages that are not listed; return how many. Durable on return.

    Cost: a walk over everything that is pending.
    """
    keys, unlisted, entered = Keys(directory), Unlisted(directory), 0
    with Snapshot(directory) as snapshot:
        for message in snapshot.messages():
            unlisted.add(message)
    for id_, key in unlisted.found().items():
        with keys.hold([key]) as hold:
            if not hold.busy:
                hold.look(key, directory.env.clock.now_us())
                hold.note([(key, id_)])
                entered += 1
    return entered


def mend_key_files(directory: Directory, quarantine: Quarantine) -> list[str]:
    """Rebuild foreign or overlong files of keys from the pending messages.

    The caller holds the lock of the keeper. Returns what was done. Raises OSError, DiskError.
    """
    keys, done = Keys(directory), []
    if _unread(directory, keys, layout.KEY_RECENT):
        done.append(_mend_recent(directory, keys, quarantine))
    bad = [b for b in range(layout.KEY_BUCKETS) if _unread(directory, keys, b)]
    if not bad:
        return done
    with Held(directory) as held:
        if not keys.lock_all(held, WAIT_S, shared=True):
            done.append(f"{layout.KEYS} was left as it is: another process has the lock of all keys")
            return done
        for bucket in bad:
            if not keys.lock(held, bucket, WAIT_S):
                done.append(f"{layout.key_file(bucket)} was left as it is: another process has its lock")
                return done
        pairs: dict[int, list[tuple[bytes, bytes]]] = {bucket: [] for bucket in bad}
        with Snapshot(directory) as snapshot:
            for message in snapshot.messages():
                key = message.headers.get(KEY)
                hash_ = b"" if key is None else keys.hash_of(key)
                if hash_ and hash_[0] in pairs:
                    pairs[hash_[0]].append((hash_, message.id))
        for bucket, found in pairs.items():
            was = _make_way(directory, quarantine, bucket)
            keys.replace(bucket, found)
            done.append(f"{was}, and was made again with {len(found)} keys")
    return done


def _unread(directory: Directory, keys: Keys, bucket: int) -> bool:
    """Return whether a file of keys is unreadable."""
    return keys.is_too_long(bucket) or is_foreign(directory, layout.key_file(bucket))


def _make_way(directory: Directory, quarantine: Quarantine, bucket: int) -> str:
    """Put aside a foreign object in the place of a file of keys; return the fault."""
    name = layout.key_file(bucket)
    if not is_foreign(directory, name):
        return f"{name} was {_TOO_LONG}"
    return put_aside(directory, quarantine, name, NOT_FILE)


def _mend_recent(directory: Directory, keys: Keys, quarantine: Quarantine) -> str:
    """Rebuild the unreadable file of recent entries; the buckets get its entries."""
    name = layout.key_file(layout.KEY_RECENT)
    with keys.locked(layout.KEY_RECENT, WAIT_S) as is_locked:
        if not is_locked:
            return f"{name} was left as it is: another process has the lock of all keys"
        unlisted = Unlisted(directory, with_recent=False)
        with Snapshot(directory) as snapshot:
            for message in snapshot.messages():
                unlisted.add(message)
        pairs: dict[int, list[tuple[bytes, bytes]]] = {}
        for id_, key in unlisted.found().items():
            hash_ = keys.hash_of(key)
            pairs.setdefault(hash_[0], []).append((hash_, id_))
        keys.write(pairs, {bucket: keys.read(bucket) for bucket in pairs}, {})
        was = _make_way(directory, quarantine, layout.KEY_RECENT)
        keys.replace(layout.KEY_RECENT, [])
        count = sum(map(len, pairs.values()))
        return f"{was}, and was made again; {count} keys were entered again"
