"""Messages with a unique key: enqueued, and moved, so that at most one that lives has the key.

Each function holds the lock of the key's bucket from its look to its frame (U1), and lets go of it before it waits for
the frame's flush. The message that is replaced goes and the new one comes in one frame: a crash leaves one of the two.
Invariant: no put with a key is written but by these functions, `Wheel.add` and the keeper, each under the lock.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence

from filewheel import locks
from filewheel.directory import Directory, Sync
from filewheel.errors import BadArgument, KeyHeld, Locked, NotFound
from filewheel.headers import DEADLINE, DUE, KEY, REASON
from filewheel.journal import Journal
from filewheel.keys import Hold, Keys
from filewheel.message import Message, MessageId, receipt
from filewheel.record import (
    CANCELLED,
    PUT_PREFIX,
    RESCHEDULED,
    pack_drop,
    pack_message,
    pack_middle,
    pack_payload,
    unpack_put,
)

POLICIES = ("reject", "keep", "replace")


def check_policy(on_conflict: object) -> None:
    """Raise unless this says what to do about a key that is held."""
    if on_conflict not in POLICIES:
        raise BadArgument(f'on_conflict is "reject", "keep" or "replace", not {on_conflict!r}')


@contextlib.contextmanager
def holding(keys: Keys, names: Iterable[str], path: str) -> Iterator[Hold]:
    """Lock keys, or raise Locked when another process has one of them for half a minute."""
    with keys.hold(names) as hold:
        if hold.busy:
            raise Locked(
                f"another process is busy with the key {min(hold.busy)!r}, or one of the same file, and does not go on",
                role="key", path=path, hint="continue or kill the process that is stopped in the middle of an enqueue",
            )  # fmt: skip
        yield hold


def put(
    keys: Keys,
    journal: Journal,
    key: str,
    on_conflict: str,
    due_us: int,
    rest: bytes,
    *,
    now_us: int,
    sync: Sync,
    path: str,
) -> MessageId:
    """Enqueue a message with a key (`rest` is what follows its id); return the id that holds the key now."""
    with holding(keys, [key], path) as hold:
        held = hold.look(key, now_us)
        if held.id is not None and on_conflict == "keep":
            return held.id
        if held.id is not None and on_conflict == "reject":
            raise key_held(key, held.id, path)
        id_ = journal.new_id(due_us)
        hold.note([(key, id_)], journal)
        drops = [] if held.id is None else [pack_drop(held.id, CANCELLED)]
        ticket = journal.write([*drops, PUT_PREFIX + id_ + rest], 1)
    return receipt(id_, journal.settle(ticket, sync))


def move(
    keys: Keys,
    journal: Journal,
    key: str,
    old: MessageId | None,
    due_us: int,
    *,
    now_us: int,
    sync: Sync,
    directory: Directory,
) -> MessageId:
    """Move a message that has a key, or a dead letter (by its id), to another time; return its new id.

    Raises NotFound when it is not pending, KeyHeld when a dead letter's key is held by another message.
    """
    with holding(keys, [key], directory.path) as hold:
        held = hold.look(key, now_us)
        packed = held.put if old is None or old == held.id else keys.put_of(old)
        if packed is None:
            raise not_found(key, old, directory.path)
        message = unpack_put(packed)
        if message.is_dead and held.id is not None:
            raise key_held(key, held.id, directory.path)
        new = journal.new_id(due_us)
        hold.note([(key, new)], journal)
        with locks.holding_ids(directory, [message.id]):
            if keys.put_of(message.id) is None:  # V1: who cancels by the id has no lock of the key
                raise not_found(key, old, directory.path)
            ticket = journal.write([pack_drop(message.id, RESCHEDULED), PUT_PREFIX + new + moved_rest(message)], 1)
    return receipt(new, journal.settle(ticket, sync))


def not_found(key: str | None, old: MessageId | None, path: str) -> NotFound:
    """Return the error that says that nothing is pending under an id, or that nobody has a key."""
    return NotFound(
        f"no message {old} is pending" if old is not None else f"no message holds the key {key!r}",
        path=path, hint="it fired, was cancelled or moved; `filewheel inspect list` shows what waits",
    )  # fmt: skip


def moved_rest(message: Message) -> bytes:
    """Pack what follows the id of a message that moves; a dead letter starts anew."""
    # A new time is one that nobody is late for yet.
    headers = {k: v for k, v in message.headers.items() if k != DUE}
    attempt = message.attempt
    if message.is_dead:
        attempt = 0
        # Its deadline is what it died of, or has passed since: it would die again at once.
        headers = {k: v for k, v in headers.items() if k not in (REASON, DEADLINE)}
    root = message.root or message.id
    return pack_middle(message.enqueued_us, message.topic, headers, root=root, attempt=attempt) + pack_payload(
        message.payload
    )


def add(keys: Keys, journal: Journal, messages: Sequence[Message], *, now_us: int, path: str) -> None:
    """Write messages that have their ids already, some with keys, as one frame, without a flush.

    Raises KeyHeld, with nothing of it written, when another message that lives has one of the keys.
    """
    by_key: dict[str, MessageId] = {}
    for message in messages:
        key = message.headers.get(KEY)
        if key is not None and not message.is_dead and by_key.setdefault(key, message.id) != message.id:
            raise key_held(key, by_key[key], path)
    puts = [pack_message(m) for m in messages]
    if not by_key:
        journal.write(puts, len(puts))
        return
    with holding(keys, by_key, path) as hold:
        for key, id_ in by_key.items():
            held = hold.look(key, now_us)
            if held.id is not None and held.id != id_:
                raise key_held(key, held.id, path)
        hold.note(by_key.items(), journal)
        journal.write(puts, len(puts))


def key_held(key: str, id_: MessageId, path: str) -> KeyHeld:
    """Return the error that says who holds a key."""
    return KeyHeld(
        f"the key {key!r} is held by the message {id_}", key=key, id=id_, path=path,
        hint='cancel it, wait until it is done, or say on_conflict="keep" or "replace" (`--on-conflict`)',
    )  # fmt: skip
