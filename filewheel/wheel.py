"""The wheel for producers and readers.

A producer appends to a journal of its own and takes no shared lock; a reader takes a snapshot and writes nothing.
Neither needs a running keeper. `keeper.py` is the other half: firing.
Invariant: an enqueue that returned is as durable as its `sync` says, with or without other processes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Literal, Self, get_args

from filewheel.changes import HINT_AHEAD_US, Changes
from filewheel.checks import check_choice, check_flag, check_function, check_items, check_path
from filewheel.disk import forks
from filewheel.disk.directory import create_directory, open_directory
from filewheel.disk.disk import SYSTEM
from filewheel.disk.forks import AfterFork
from filewheel.env import Clock, Env, check_env
from filewheel.errors import BadArgument, DiskError, KeyHeld, NoWheel, WheelExists, partly_done
from filewheel.format import layout
from filewheel.format.ids import Ids
from filewheel.format.limits import bytes_of, check_headers, check_message, check_topic
from filewheel.format.record import pack_middle, pack_payload, pack_tail
from filewheel.format.settings import PAYLOAD_BYTES_MAX_DEFAULT, SLOTS_DEFAULT, Sync, check_limits, check_sync
from filewheel.journal.columns import At, Delay, Headers, dues_of, keyed_middles_of, middles_of
from filewheel.journal.journal import Journal
from filewheel.keys import unique
from filewheel.message import DUE_END_US, ID_END, KEY, Message, MessageId, due_of, receipt
from filewheel.native.compiled import due_at, size_of
from filewheel.roster.fence import LOOK_US
from filewheel.timespec import due_from

if TYPE_CHECKING:
    from filewheel.firing.purge import Purged

OnConflict = Literal["reject", "keep", "replace"]
"""For a unique key that is held: raise KeyHeld, return the id of its holder, or cancel the holder."""

_PLAIN = (list, tuple)
_ADD_BYTES = 1 << 20
_ADD_EACH_BYTES = 128


class Wheel(Changes):
    """A wheel to enqueue into and to read. Thread-safe; any number of processes may open it at once.

    Opening reads wheel.json. The first enqueue makes this handle's journal. Close the handle, or use it in a `with`:
    closing flushes messages that were enqueued with another `sync` than "always".
    """

    is_new = False
    """Whether `create` or `open_or_create` made this wheel."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        sync: Sync | None = None,
        force: bool = False,
        after_fork: AfterFork = "raise",
        on_flush: Callable[[int], None] | None = None,
        clock: Clock | None = None,
        env: Env = SYSTEM,
    ) -> None:
        """Open the wheel at `path`. `sync` overrides the wheel's own; `force` allows a network file system.

        `on_flush` is called with the microseconds of each flush. It must not raise.

        In a forked child an inherited handle raises Forked; with after_fork="reopen" its first call reopens it. The
        parent still flushes the messages that it enqueued before the fork.

        Raises NoWheel, Unsafe, NewerFormat, Damaged.
        """
        check_flag("force", force)
        check_choice("after_fork", after_fork, get_args(AfterFork))
        if on_flush is not None:
            check_function("on_flush", on_flush)
        # A process without write permission can open it too; the first write checks the permission.
        env = check_env(env).using(clock=clock)
        directory = open_directory(path, write=False, env=env)
        sync = directory.settings.sync if sync is None else check_sync(sync)
        anew = partial(
            Wheel, check_path(path), sync=sync, force=force, after_fork=after_fork, on_flush=on_flush, env=env
        )
        super().__init__(directory, anew if after_fork == "reopen" else None, sync=sync, force=force, on_flush=on_flush)
        self._payload_bytes_max = directory.settings.payload_bytes_max
        self._forks = forks.now()
        self._tails: dict[str, bytes] = {}
        """topic → the packed bytes between time and payload of a message without headers"""

    @classmethod
    def create(
        cls,
        path: str | os.PathLike[str],
        *,
        slots: int = SLOTS_DEFAULT,
        sync: Sync = "always",
        payload_bytes_max: int = PAYLOAD_BYTES_MAX_DEFAULT,
        exist_ok: bool = False,
        force: bool = False,
        clock: Clock | None = None,
        env: Env = SYSTEM,
    ) -> Self:
        """Make a wheel at `path` and open it. `slots` is the length of a lap in seconds.

        `is_new` says whether this call made it. Raises WheelExists when there is already a file at `path`; with
        `exist_ok` a wheel there is opened instead.
        """
        check_flag("exist_ok", exist_ok)
        check_flag("force", force)
        is_new = True
        env = check_env(env).using(clock=clock)
        # Also with `exist_ok`: another process may be making it now, and this call waits for that.
        try:
            create_directory(
                path,
                slots=slots,
                sync=sync,
                payload_bytes_max=payload_bytes_max,
                now_us=env.clock.now_us(),
                force=force,
                env=env,
            )
        except WheelExists:
            if not (exist_ok and os.path.exists(os.path.join(path, layout.SETTINGS))):
                raise
            is_new = False
        made = cls(path, force=force, env=env)
        made.is_new = is_new
        return made

    @classmethod
    def open_or_create(
        cls,
        path: str | os.PathLike[str],
        *,
        sync: Sync | None = None,
        slots: int = SLOTS_DEFAULT,
        payload_bytes_max: int = PAYLOAD_BYTES_MAX_DEFAULT,
        force: bool = False,
        after_fork: AfterFork = "raise",
        on_flush: Callable[[int], None] | None = None,
        clock: Clock | None = None,
        env: Env = SYSTEM,
    ) -> Self:
        """Open the wheel at `path`, or make it if there is none; `is_new` says whether this call made it.

        `sync` applies to this handle, and to a new wheel; `slots` and `payload_bytes_max` apply to a new wheel. When
        several calls run at once, one makes the wheel.

        Raises as opening does; WheelExists when there is another file, NoWheel when the parent directory is missing.
        """
        check_limits(slots, payload_bytes_max)
        env = check_env(env).using(clock=clock)
        sync = None if sync is None else check_sync(sync)
        opened = partial(cls, path, sync=sync, force=force, after_fork=after_fork, on_flush=on_flush, env=env)
        try:
            return opened()
        except NoWheel:
            made = cls.create(
                path,
                slots=slots,
                sync="always" if sync is None else sync,
                payload_bytes_max=payload_bytes_max,
                exist_ok=True,
                force=force,
                env=env,
            )
        made.close()
        wheel = opened()  # another process may have made it with another `sync`
        wheel.is_new = made.is_new
        return wheel

    # -- life ------------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Wheel {self._dir.path}{' (closed)' if self._closed else ''}>"

    def purge(
        self,
        ids: Iterable[MessageId | str | bytes] | None = None,
        *,
        topic: str | None = None,
        key: str | None = None,
        quarantine: bool = False,
        timeout_s: float = 10.0,
    ) -> Purged:
        """Take what was cancelled or acknowledged out of every file of this wheel; return what was done, what is left.

        Without a choice it takes all that has ended, and the whole history; with `ids`, a `topic` (or glob) or a `key`
        the history of the others stays. Nothing that is pending is removed. A keeper that runs does it beside its
        firing; else this call does. Programs that write meanwhile leave their journals within a fifth of a second. It
        waits `timeout_s` for the keeper, for these programs, and for backups; what did not follow is among `unreached`
        then. So are files that cannot be read, what is meant and pending, and the bytes in quarantine unless
        `quarantine` removes them. Cost: reads the journals and the headers of the laps, with a choice all messages; its
        deals.

        Raises BadArgument, Unsafe, ReadOnly, WheelFull, Fenced, DiskError.
        """
        with forks.IMPORTS:  # on demand: a producer that never purges does not load what a deal needs
            from filewheel.firing.purge import Choice, purge
            from filewheel.sets.target import has_deal
        choice = Choice.of(ids, topic, key)
        self._writer().rotate()
        return purge(self._dir, choice, quarantine=quarantine, timeout_s=timeout_s, has_deal=has_deal)

    # -- enqueue ---------------------------------------------------------------------------------------------

    def enqueue(
        self,
        payload: bytes,
        *,
        delay: Delay | None = None,
        at: At | None = None,
        topic: str = "",
        headers: Mapping[str, str] | None = None,
        sync: Sync | None = None,
        key: str | None = None,
        on_conflict: OnConflict = "reject",
    ) -> MessageId:
        """Enqueue one message and return its id.

        It is due after `delay` (seconds or timedelta), or at the time `at` (an aware datetime or epoch seconds); with
        neither, now. On return it is as durable as `sync` says: with "always" it survives a power cut. Cost: one append
        and one flush; threads that enqueue at the same time share the flush, with or without keys.

        At most one message with a given `key` (1 to 255 bytes) lives: is pending or claimed, and not acknowledged,
        cancelled or dead. If another message holds the key, `on_conflict` decides: "reject" raises KeyHeld, "keep"
        returns the id of the holder and enqueues nothing, "replace" cancels the holder and enqueues this message, in
        one commit. A key costs one more flush.

        In a set of wheels it returns when as many wheels hold the message as the set asks for: `copies` of the id.

        Raises BadArgument, TooLarge, WheelFull, ReadOnly, Unsafe, Poisoned; with a key also KeyHeld, Locked. In a set
        also TooFewCopies, when the message may be enqueued or not, and Fenced, at most a fifth of a second after
        another wheel was promoted.
        """
        is_ours = forks.now() == self._forks  # first: another thread of a child may be reopening this handle
        journal = self._journal
        if journal is None or self._closed or not is_ours:
            journal = self._writer()
        if type(payload) is not bytes or len(payload) > self._payload_bytes_max:
            payload = bytes_of(payload, self._payload_bytes_max)
        now_us = self._clock.now_us()
        if not 0 <= now_us - self._looked_us < LOOK_US:  # mutant: producer-looks-once producer-waits-for-the-clock
            self._look(journal, now_us)
        if at is None:
            due_us = now_us if delay is None else due_at(now_us, delay, DUE_END_US)
        else:
            due_us = due_at(0, at, DUE_END_US) if delay is None else -1
        if due_us < 0:
            due_us = due_from(now_us, delay=delay, at=at)
        if key is not None or on_conflict != "reject":
            return self._enqueue_unique(journal, payload, due_us, now_us, topic, headers, sync, key, on_conflict)
        tail = (self._tails.get(topic) if type(topic) is str else None) or self._know_topic(topic)
        if headers:
            if KEY in check_headers(headers):
                return self._enqueue_unique(journal, payload, due_us, now_us, topic, headers, sync, key, on_conflict)
            tail = pack_tail(topic, headers)
        id_ = journal.put(due_us, now_us, tail, payload, sync=self._sync if sync is None else check_sync(sync))
        if due_us < now_us + HINT_AHEAD_US:
            self._hint.send(now_us)
        return id_

    def _enqueue_unique(
        self,
        journal: Journal,
        payload: bytes,
        due_us: int,
        now_us: int,
        topic: str,
        headers: Headers,
        sync: Sync | None,
        key: str | None,
        on_conflict: str,
    ) -> MessageId:
        """Enqueue a message with a key: the argument, or the key header of a message that is enqueued again."""
        unique.check_policy(on_conflict)
        check_topic(topic)
        key = unique.key_named(key, headers)
        if key is None:
            raise BadArgument("on_conflict needs a key", hint='key="..."')
        sync = self._sync if sync is None else check_sync(sync)
        named = check_headers({**headers, KEY: key}) if headers else {KEY: key}
        rest = pack_middle(now_us, topic, named) + pack_payload(payload)
        ask = unique.Ask(key, on_conflict, due_us, rest)
        (made,), ticket = unique.put_all(self._keys, journal, [ask])
        if not isinstance(made, MessageId):
            raise made
        id_ = made if ticket is None else receipt(made, journal.wait_durable(ticket, sync))
        if due_us < now_us + HINT_AHEAD_US:
            self._hint.send(now_us)
        return id_

    def enqueue_many(
        self,
        payloads: Iterable[bytes],
        *,
        delay: Delay | Sequence[Delay] | None = None,
        at: At | Sequence[At] | None = None,
        topic: str | Sequence[str] = "",
        headers: Headers | Sequence[Headers] = None,
        sync: Sync | None = None,
        keys: Sequence[str | None] | None = None,
        on_conflict: OnConflict = "reject",
    ) -> Ids:
        """Enqueue many messages and return their ids, in order. The cheapest way to enqueue.

        `delay`, `at`, `topic` and `headers` are each one value for all messages, or a sequence with one for each. Up to
        8 MiB are one commit: a crash keeps all of it or none. Every argument is checked before anything is written.
        Cost: about 0.3 µs a message, and one flush.

        `keys` has the unique key of each message, or None. If a key is held, "reject" raises KeyHeld, whose `held` maps
        each held key to its holder, and enqueues nothing; "keep" returns the id of the holder instead, with `id.kept`
        true; "replace" cancels the holder. Cost: about 10 µs a key.
        """
        journal = self._writer()
        now_us = self._clock.now_us()
        if type(payloads) not in _PLAIN:
            payloads = list(check_items("payloads", payloads))
        bodies: Sequence[bytes] = payloads  # type: ignore[assignment]
        limit = self._payload_bytes_max
        size = size_of(bodies, limit)
        if size < 0:
            bodies = [bytes_of(b, limit) for b in bodies]
            size = size_of(bodies, limit)
        count = len(bodies)
        dues = dues_of(now_us, delay, at, count)
        sync = self._sync if sync is None else check_sync(sync)
        if keys is not None or on_conflict != "reject":
            unique.check_policy(on_conflict)
            middles = keyed_middles_of(now_us, topic, headers, keys or (), count)
            return self._enqueue_keyed(journal, dues, middles, bodies, keys or (), on_conflict, sync)
        middle = middles_of(now_us, topic, headers, count)
        made = journal.put_many(dues, middle, bodies, size_bytes=size, sync=sync)
        if made and due_of(made.least) < now_us + HINT_AHEAD_US:
            self._hint.send(now_us)
        return made

    def _enqueue_keyed(
        self,
        journal: Journal,
        dues: Sequence[int],
        middles: Sequence[bytes],
        bodies: Sequence[bytes],
        keys: Sequence[str | None],
        on_conflict: str,
        sync: Sync,
    ) -> Ids:
        """Enqueue many checked messages with keys: all of them, or none."""
        rows = zip(keys, dues, middles, bodies, strict=True)
        asks = [unique.Ask(key, on_conflict, due, middle + pack_payload(body)) for key, due, middle, body in rows]
        made, ticket = unique.put_all(self._keys, journal, asks, all_or_none=True)
        ids = [id_ for id_ in made if isinstance(id_, MessageId)]
        if len(ids) < len(made):
            raise unique.refusal_of(asks, made)
        copies = 1 if ticket is None else journal.wait_durable(ticket, sync)
        now_us = self._clock.now_us()
        if dues and min(dues) < now_us + HINT_AHEAD_US:
            self._hint.send(now_us)
        kept = frozenset(n for n, id_ in enumerate(ids) if id_.kept)
        return Ids(b"".join(ids), copies, min(ids, default=ID_END), kept=kept)

    def _know_topic(self, topic: str) -> bytes:
        """Check a topic once, and cache it packed."""
        check_topic(topic)
        if len(self._tails) > 4096:
            self._tails.clear()
        self._tails[topic] = tail = pack_tail(topic, None)
        return tail

    def add(self, messages: Iterable[Message], *, sync: Sync | None = None) -> int:
        """Add messages with their present ids, as `load` does; return how many of them are pending now.

        Adding a message twice has no effect. A message that was cancelled, moved or acknowledged in this wheel is not
        added under its old id, while the wheel has a record of that: until the file of its time is removed. A living
        message takes its unique key; if another message here holds it, KeyHeld is raised and no message of the same MiB
        is added.
        """
        journal = self._writer()
        some: list[Message] = []
        size = count = 0

        def commit() -> None:
            nonlocal size, count
            # If a put is written twice, one copy may be dealt with the drop, the other before it: that one would stay.
            there, ended = self._finder.known([m.id for m in some])
            known = there | ended
            new = [m for m in some if m.id not in known] if known else some  # mutant: added-twice
            try:
                if new:
                    unique.add(self._keys, journal, new)
            except DiskError as exc:
                raise (partly_done(exc, count) if count else exc) from exc.__cause__
            except KeyHeld as exc:
                exc.what += f"; {count} messages of this call were added" if count else "; nothing was added"
                raise
            count += len(some) - sum(m.id in ended for m in some)
            size = 0
            some.clear()

        for message in check_items("messages", messages):
            check_message(message, self._payload_bytes_max)
            some.append(message)
            size += len(message.payload) + _ADD_EACH_BYTES
            if size > _ADD_BYTES:
                commit()
        if some:
            commit()
        if count and (self._sync if sync is None else check_sync(sync)) == "always":
            journal.flush()
        self._hint.send(self._clock.now_us())
        return count
