"""Enqueueing and moving messages with a unique key, so that at most one pending message has the key.

Each function holds the locks of the keys from its look to its frame (U1), and releases them before it waits for the
flush of the frame. The drop of the replaced message and the put of the new one are one frame: a crash leaves one of
the two. Many messages are written together: one look, one frame.
Invariant: only these functions and the keeper write a put with a key, each under the lock.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from filewheel.checks import shown
from filewheel.disk import locks
from filewheel.disk.threads import one_call
from filewheel.errors import BadArgument, DiskError, FilewheelError, KeyHeld, Locked, NotFound, partly_done
from filewheel.format.frame import portions
from filewheel.format.limits import check_headers, check_new_key
from filewheel.format.record import (
    CANCELLED,
    PUT_PREFIX,
    RESCHEDULED,
    pack_drop,
    pack_message,
    pack_middle,
    pack_payload,
    unpack_put,
)
from filewheel.format.settings import Sync
from filewheel.journal.journal import BATCH_BYTES, Journal
from filewheel.keys.index import Keys
from filewheel.message import DEADLINE, DUE, KEY, REASON, WAITS, Message, MessageId, receipt

POLICIES = ("reject", "keep", "replace")


def check_policy(on_conflict: object) -> None:
    """Raise BadArgument unless this is a known policy for a key that is held."""
    if on_conflict not in POLICIES:
        raise BadArgument(f'on_conflict is "reject", "keep" or "replace", not {shown(on_conflict)}')


@contextlib.contextmanager
def holding(keys: Keys, names: Iterable[str]) -> Iterator[None]:
    """Hold the locks of keys, or raise Locked when another process has one of them for half a minute."""
    with locks.HeldLocks(keys.dir) as held:
        hashes = {keys.hash_of(name): name for name in names}
        busy = locks.take_keys(held, hashes, locks.WAIT_S)
        if busy:
            raise _busy([name for hash_, name in hashes.items() if locks.number_of(hash_) in busy], keys.dir.path)
        yield


def _busy(keys: Iterable[str], path: str) -> Locked:
    return Locked(
        f"another process is busy with the key {min(keys)!r}, or one with the same lock, and does not go on",
        role="key",
        path=path,
        hint="continue or kill the process that is stopped in the middle of an enqueue",
    )


class Ask(NamedTuple):
    """A message that is to be written, with a key or without."""

    key: str | None
    on_conflict: str
    due_us: int
    rest: bytes
    """The rest of the record, after its id."""
    expects: bytes | None = None
    """With "replace": the only message that it replaces. If another, or none, has the key, it is not written."""


def key_named(key: str | None, headers: Mapping[str, str] | None) -> str | None:
    """Return the key of a message: the given one, or the one in its header."""
    named = check_headers(headers).get(KEY) if headers else None
    if None not in (key, named) and key != named:
        raise BadArgument(f"the key is {key!r}, and the header {KEY} says {named!r}", hint="give the key alone")
    found = named if key is None else key
    return None if found is None else check_new_key(found, headers)


def put_all(
    keys: Keys,
    journal: Journal,
    asks: Sequence[Ask],
    *,
    all_or_none: bool = False,
) -> tuple[list[MessageId | KeyHeld | Locked], int | None]:
    """Write messages, up to 8 MiB as one frame; return a result for each, and the ticket if any was written.

    A result is the message's id, or with "keep" perhaps the id that holds its key, or the error why it was not written.
    With `all_or_none`, one error means that none is written. Of several messages with one key the first holds it when
    the next is checked.
    """
    path = keys.dir.path
    hashes = {ask.key: keys.hash_of(ask.key) for ask in asks if ask.key is not None}
    results: list[MessageId | KeyHeld | Locked] = []
    units: dict[bytes, list[bytes]] = {}
    """The records of each written message: the drop of the one that it replaces, and its put."""
    with one_call(keys.alone, path), locks.HeldLocks(keys.dir) as held:
        numbers = locks.take_keys(held, hashes.values(), locks.WAIT_S)
        busy = {key for key, hash_ in hashes.items() if locks.number_of(hash_) in numbers} if numbers else ()
        looked = keys.look({k: h for k, h in hashes.items() if k not in busy} if busy else hashes)
        holders = {key: holder.id for key, holder in looked.holders.items()}
        entered: set[str] = set()
        ids = journal.new_ids([ask.due_us for ask in asks])
        for at, ask in enumerate(asks):
            holder = None if ask.key is None else holders.get(ask.key)
            if ask.key in busy:
                results.append(_busy(busy, path))
            elif holder is not None and ask.on_conflict == "keep":
                results.append(receipt(holder, 1, kept=True))
            elif ask.key is not None and ask.expects not in (None, holder):  # mutant: planted-blindly
                results.append(_moved(ask.key, holder, path))
            elif ask.key is not None and holder is not None and ask.on_conflict == "reject":
                # mutant: twice-by-nobody
                is_own = all_or_none and ask.key in entered  # the message that holds it is refused with this one
                results.append(_key_twice(asks, at, path) if is_own else key_held(ask.key, holder, path))
            else:
                id_ = ids[at]
                # A message that a later one of the same call replaces is not written.
                before = [] if holder is None else units.pop(holder, [pack_drop(holder, CANCELLED), b""])[:-1]
                units[id_] = [*before, PUT_PREFIX + id_ + ask.rest]
                if ask.key is not None:
                    entered.add(ask.key)
                    holders[ask.key] = id_
                results.append(id_)
        if not units or (all_or_none and any(isinstance(r, FilewheelError) for r in results)):  # mutant: keys-half-done
            return results, None
        if entered:
            keys.flush_drops(looked, journal)
        ticket = _write(journal, list(units.values()))  # mutant: key-lock-early
    return results, ticket


def _write(journal: Journal, units: Sequence[Sequence[bytes]]) -> int:
    """Write the records of messages, each message whole in one frame; return the ticket to wait with."""
    ticket = 0
    for start, end in portions([sum(map(len, unit)) for unit in units], BATCH_BYTES):  # mutant: keys-apart
        try:
            ticket = journal.write([record for unit in units[start:end] for record in unit], end - start)
        except DiskError as exc:
            raise (partly_done(exc, start) if start else exc) from exc.__cause__
    return ticket


def move(
    keys: Keys,
    journal: Journal,
    key: str,
    old: MessageId | None,
    due_us: int | None,
    *,
    sync: Sync,
    payload: bytes | None = None,
) -> MessageId:
    """Move a message that has a key, or a dead letter (by its id), to another time, or payload; return its new id.

    Raises NotFound when it is not pending, KeyHeld when a dead letter's key is held by another message.
    """
    directory = keys.dir
    with one_call(keys.alone, directory.path), holding(keys, [key]):
        looked = keys.look(keys.hashes_of([key]))
        held = looked.holders[key]
        packed = held.put if old is None or old == held.id else keys.put_of(old)
        if packed is None:
            raise not_found(key, old, directory.path)
        message = unpack_put(packed)
        if message.is_dead and held.id is not None:  # mutant: key-revived-twice
            raise key_held(key, held.id, directory.path, hint="cancel that message, or wait until it is done")
        new = journal.new_id(message.due_us if due_us is None else due_us)
        message.payload = message.payload if payload is None else payload
        keys.flush_drops(looked, journal)
        with locks.holding_ids(directory, [message.id]):
            # mutant: key-moved-though-cancelled
            if keys.put_of(message.id) is None:  # V1: a cancel by id takes no lock of the key
                raise not_found(key, old, directory.path)
            ticket = journal.write([pack_drop(message.id, RESCHEDULED), PUT_PREFIX + new + moved_rest(message)], 1)
    return receipt(new, journal.wait_durable(ticket, sync))


def not_found(key: str | None, old: MessageId | None, path: str) -> NotFound:
    """Return the error for an id without a pending message, or a key without a holder."""
    return NotFound(
        f"no message {old} is pending" if old is not None else f"no message holds the key {key!r}",
        path=path,
        hint="it fired, was cancelled, has moved, or is another wheel's: `filewheel inspect "
        + (f"{old}` names the id that it has now" if old is not None else "list` shows what waits"),
    )


def moved_rest(message: Message) -> bytes:
    """Pack the part after the id of a message that moves; a dead letter starts again at attempt 0."""
    # The new due replaces the one that the message was late for.
    headers = {k: v for k, v in message.headers.items() if k not in (DUE, WAITS)}
    attempt = message.attempt
    if message.is_dead:
        attempt = 0
        # It died of its deadline, or the deadline has passed since: it would die again at once.
        headers = {k: v for k, v in headers.items() if k not in (REASON, DEADLINE)}
    root = message.root or message.id
    return pack_middle(message.enqueued_us, message.topic, headers, root=root, attempt=attempt) + pack_payload(
        message.payload
    )


def add(keys: Keys, journal: Journal, messages: Sequence[Message]) -> None:
    """Write messages that have their ids already, some with keys, as one frame, without a flush.

    Raises KeyHeld, with nothing written, when another living message has one of the keys.
    """
    path = keys.dir.path
    by_key: dict[str, MessageId] = {}
    for message in messages:
        key = message.headers.get(KEY)
        # mutant: key-of-the-dead
        if key is not None and not message.is_dead and by_key.setdefault(key, message.id) != message.id:
            raise KeyHeld(
                f"the messages {by_key[key]} and {message.id} of this call have one key, {key!r}",
                key=key,
                path=path,
                hint="at most one with a key may live: leave one of them out",
            )
    puts = [pack_message(m) for m in messages]
    if not by_key:
        journal.write(puts, len(puts))
        return
    with one_call(keys.alone, path), holding(keys, by_key):
        looked = keys.look(keys.hashes_of(by_key))
        for key, id_ in by_key.items():
            held = looked.holders[key]
            if held.id is not None and held.id != id_:
                raise key_held(key, held.id, path, hint="cancel that message, or leave out the one with its key")
        keys.flush_drops(looked, journal)
        journal.write(puts, len(puts))


def refusal_of(asks: Sequence[Ask], made: Sequence[MessageId | KeyHeld | Locked]) -> KeyHeld | Locked:
    """Return the error of a call that enqueued nothing, with all of its held keys."""
    failed = [error for error in made if not isinstance(error, MessageId)]
    # A key that a living message holds comes before one that the call itself has twice.
    first = min(failed, key=lambda e: 0 if isinstance(e, Locked) else 1 if e.id else 2)
    if isinstance(first, KeyHeld):
        pairs = zip(asks, made, strict=True)
        first.held = {a.key: error.id for a, error in pairs if isinstance(error, KeyHeld) and a.key and error.id}
        if len(first.held) > 1:
            first.what += f"; {len(first.held)} keys of this call are held"
        first.what += "; nothing was enqueued"
    return first


def _moved(key: str, holder: bytes | None, path: str) -> KeyHeld:
    """Return the error that another message has a key than the one that was to be replaced."""
    if holder is not None:
        return key_held(key, holder, path)
    return KeyHeld(f"no message holds the key {key!r} any more", key=key, path=path, hint="look again")


def _key_twice(asks: Sequence[Ask], at: int, path: str) -> KeyHeld:
    """Return the error of a key that an earlier message of the same call has too: no message holds it yet."""
    key = asks[at].key or ""
    before = next(n for n, ask in enumerate(asks) if ask.key == key)
    return KeyHeld(
        f"messages {before} and {at} of this call (the first is 0) have one key, {key!r}",
        key=key,
        path=path,
        hint='give each a key of its own, or say on_conflict="keep" or "replace" (`--on-conflict`)',
    )


def key_held(
    key: str,
    id_: bytes,
    path: str,
    *,
    hint: str = 'cancel it, wait until it is done, or say on_conflict="keep" or "replace" (`--on-conflict`)',
) -> KeyHeld:
    """Return the error that another message holds a key."""
    return KeyHeld(
        f"the key {key!r} is held by the message {MessageId(id_)}",
        key=key,
        id=id_,
        path=path,
        hint=hint,
    )
