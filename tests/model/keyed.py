"""Unique keys on the modelled machine: acts with keys, directed scripts, and all workloads of up to three of them.

What must hold in every state that a crash may leave (history.py checks it): of the messages with one key at most one
lives; and the index names that one, or nobody.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable

from filewheel.errors import KeyHeld, Locked, NotFound
from filewheel.format import layout
from filewheel.keys.upkeep import rebuild_keys
from filewheel.message import MessageId
from tests.model.crashes import RandomFates, crash
from tests.model.directed import script
from tests.model.history import Result
from tests.model.machine import Dir, Inode
from tests.model.process import Killed
from tests.model.stage import Stage
from tests.model.sweep import Sweep
from tests.model.world import exact

KEY = "one"


# -- acts ----------------------------------------------------------------------------------------------------


def put(
    s: Stage, who: str, in_s: float, *, key: str = KEY, on_conflict: str = "reject", durable: bool = True
) -> MessageId | None:
    """Enqueue with a key, durable unless it is asked not to be; None when the key was held."""
    oracle, due_us = s.oracle, s.due(in_s)
    oracle.keys.add(key)
    held = holder(s, key) if on_conflict == "replace" else None
    if held is not None:
        oracle.cancelling(held)
    told = oracle.new(due_us)
    try:
        id_ = s.wheel(who).enqueue(
            told.payload,
            at=exact(due_us),
            sync="always" if durable else "never",
            key=key,
            on_conflict=on_conflict,  # type: ignore[arg-type]
        )
    except KeyHeld:
        del oracle.messages[told.payload]
        return None
    if id_ in oracle.of_id:  # kept
        del oracle.messages[told.payload]
        return id_
    oracle.enqueued(told, id_, durable=durable)
    if held is not None:
        oracle.is_cancelled(held, durable=durable)
    return id_


BATCH = (KEY, "two", "three")
"""Keys with different locks."""


def put_all(
    s: Stage,
    who: str,
    in_s: float,
    *,
    keys: tuple[str, ...] = BATCH,
    on_conflict: str = "replace",
    durable: bool = True,
) -> None:
    """Enqueue a batch with keys, in one commit; one that is held is replaced, or left as it is ("keep")."""
    oracle, due_us = s.oracle, s.due(in_s)
    oracle.keys.update(keys)
    helds = [holder(s, key) if on_conflict == "replace" else None for key in keys]
    for held in helds:
        if held is not None:
            oracle.cancelling(held)
    tolds = [oracle.new(due_us) for _ in keys]
    ids = s.wheel(who).enqueue_many(
        [told.payload for told in tolds],
        at=exact(due_us),
        sync="always" if durable else "never",
        keys=keys,
        on_conflict=on_conflict,  # type: ignore[arg-type]
    )
    for told, id_, held in zip(tolds, ids, helds, strict=True):
        if id_ in oracle.of_id:  # kept
            del oracle.messages[told.payload]
            continue
        oracle.enqueued(told, id_, durable=durable)
        if held is not None:
            oracle.is_cancelled(held, durable=durable)


def holder(s: Stage, key: str = KEY) -> MessageId | None:
    """Return who has a key now, by a walk of a reader that is not watched."""
    audience, s.audience = s.audience, None
    try:
        found = [m.id for m in s.wheel("R").list() if m.headers.get("filewheel.key") == key]
    finally:
        s.audience = audience
    return found[0] if found else None


def cancel(s: Stage, who: str, key: str = KEY) -> None:
    """Cancel by key."""
    held = holder(s, key)
    if held is not None:
        s.oracle.cancelling(held)
    s.wheel(who).cancel(key=key)
    if held is not None:
        s.oracle.is_cancelled(held)


def move(s: Stage, who: str, in_s: float, *, key: str = KEY, durable: bool = True) -> MessageId | None:
    """Reschedule by key; None when nobody has it."""
    held, due_us = holder(s, key), s.due(in_s)
    if held is None:
        return None
    s.oracle.moving(held, due_us)
    new = s.wheel(who).reschedule(key=key, at=exact(due_us), sync="always" if durable else "never")
    s.oracle.is_moved(held, new, durable=durable)
    return new


def revive(s: Stage, who: str, in_s: float) -> None:
    """Reschedule a dead letter; it may not be able to have its key again."""
    dead = next(iter(s.wheel("R").list(dead=True)), None)
    if dead is None:
        return
    s.oracle.of_id.setdefault(dead.id, dead.payload)
    s.oracle.moving(dead.id, s.due(in_s))
    with contextlib.suppress(KeyHeld, NotFound):
        s.oracle.is_moved(dead.id, s.wheel(who).reschedule(dead.id, at=exact(s.due(in_s))))


def compact(s: Stage) -> None:
    """Compact every file of the index that has anything in it, as the keeper does."""
    keeper = s.keep()
    for bucket in {keeper._keys.hash_of(key)[0] for key in s.oracle.keys}:
        if keeper._keys.read(bucket):
            keeper._housekeeper._keys.compact(bucket, s.clock.wall_us)


def spoil(s: Stage) -> None:
    """Append bytes that are no entry to every file of the index, as a torn write does."""
    store = s.keep()._store
    for last in store.disk.listdir(layout.KEYS):
        if layout.parse_key_file(last) is not None:
            fd = store.disk.open(f"{layout.KEYS}/{last}", "rw")
            store.disk.pwrite(fd, b"torn", store.disk.size(fd))
            store.disk.close(fd)


def rebuild(s: Stage) -> None:
    """Rebuild the index, as one who takes over does."""
    store = s.keep()._store
    rebuild_keys(store.dir, store.quarantine)


def lose_index(s: Stage) -> None:
    """Cut the power: of what was not flushed everything is kept but the entries of keys."""
    s.kill_all()
    keys = s.machine.root.entries["keys"]
    assert isinstance(keys, Dir)
    numbers = {inode.number for inode in keys.entries.values() if isinstance(inode, Inode)}

    class Fates(RandomFates):
        def write(self, inode: Inode, index: int, offset: int, data: bytes) -> bytes | None:
            return None if inode.number in numbers else data

    s.machine = crash(s.machine, Fates(s.rng, "all"))
    s.oracle.power_cut()
    s._take_seats()


def flush(s: Stage, who: str) -> None:
    """Make durable what a producer wrote."""
    s.wheel(who).flush()
    s.oracle.told += 1


# -- scripts -------------------------------------------------------------------------------------------------


@script
def key_first(s: Stage) -> None:
    """The first key of a wheel is taken, and then others: in a directory, and a file, that are not there yet."""
    put(s, "A", 90)
    put(s, "B", 90)
    put(s, "B", 90, key="two", durable=False)
    put(s, "A", 90, key="two")


@script
def key_never(s: Stage) -> None:
    """A key is taken without a flush, and the message is in the page cache when the power goes."""
    put(s, "A", 90, durable=False)
    put(s, "B", 90, key="two")
    put(s, "B", 91, on_conflict="replace", durable=False)
    put(s, "A", 92, on_conflict="replace")


@script
def key_flushed(s: Stage) -> None:
    """A key is taken without a flush, and then the journal is flushed, and says so."""
    put(s, "A", 90, durable=False)
    put(s, "A", 91, key="two")
    put(s, "A", 92, key="three")


@script
def key_flushed_beside(s: Stage) -> None:
    """Another thread of a producer flushes the journal while a key is taken."""
    for n, key in enumerate(("one", "two", "one")):
        s.when("open", "^keys/.*lock", lambda: s.put("A", 95))
        put(s, "A", 90 + n, key=key, on_conflict="replace", durable=False)
        s.put("A", 96)
    s.put("A", 97)


@script
def key_flushed_later(s: Stage) -> None:
    """Keys are taken without a flush, in files that are not there yet, and then flushed."""
    put(s, "A", 90, durable=False)
    flush(s, "A")
    put(s, "A", 91, key="two", durable=False)
    put(s, "A", 91, on_conflict="replace", durable=False)
    flush(s, "A")
    put(s, "A", 92, key="three", durable=False)
    put(s, "A", 92, key="four", durable=False)


@script
def key_closed(s: Stage) -> None:
    """Keys are taken without a flush, and the handle is closed."""
    put(s, "A", 90, durable=False)
    put(s, "A", 91, key="two", durable=False)
    s.close("A")
    put(s, "B", 90)


@script
def key_dealt_unflushed(s: Stage) -> None:
    """A message whose entry is not flushed is dealt."""
    s.keep()
    put(s, "A", 90, durable=False)
    put(s, "A", 91, key="two", durable=False)
    s.deal()
    put(s, "B", 90)


@script
def key_dealt_after_kill(s: Stage) -> None:
    """A message whose entry is not flushed is dealt by a keeper that came when its producer had gone."""
    put(s, "A", 90, durable=False)
    s.kill("A")
    s.keep()
    s.deal()
    put(s, "B", 90)


@script
def key_lost(s: Stage) -> None:
    """A power cut takes the entries and leaves the messages; what comes then sees them, and a deal enters them."""
    put(s, "A", 90, key="two")
    put(s, "A", 90, durable=False)
    put(s, "A", 91, key="three", durable=False)
    lose_index(s)
    if put(s, "B", 90) is not None or put(s, "B", 90, key="two") is not None:
        s.oracle.violations.append("a key that is held was given away")
    move(s, "B", 95, key="three", durable=False)
    s.keep()
    s.deal()
    put(s, "C", 96)


@script
def key_lost_and_busy(s: Stage) -> None:
    """A deal comes to a message whose entry was lost while a producer has the lock of its key."""
    put(s, "A", 90, key="two")
    put(s, "A", 90, durable=False)
    lose_index(s)
    s.keep()
    s.when("open", "^keys/.*keys", s.deal)  # its lock is held then
    put(s, "B", 91)
    s.deal()
    put(s, "B", 92)


@script
def key_lost_twice(s: Stage) -> None:
    """What a power cut took out of the index is taken again by a second one, before and after a deal."""
    put(s, "A", 90, durable=False)
    lose_index(s)
    put(s, "B", 90)
    cancel(s, "B")
    put(s, "B", 91, durable=False)
    lose_index(s)
    s.keep()
    put(s, "C", 90)
    s.deal()
    lose_index(s)
    put(s, "C", 90)


@script
def key_maker_killed(s: Stage) -> None:
    """A keeper that makes the file of a key is killed before its name is durable; the next relies on it."""
    put(s, "A", 90)
    s.when("sync_dir", "^keys", s.kill_keeper)
    with contextlib.suppress(Killed):
        s.deal()
    put(s, "B", 90)
    s.deal()
    put(s, "B", 91, key="two")


@script
def key_dealer_killed(s: Stage) -> None:
    """A keeper is killed when it has entered keys and its checkpoint is not in place; the next enters them again."""
    put(s, "A", 90)
    put(s, "A", 91, key="two", durable=False)
    s.when("rename", "^checkpoint", s.kill_keeper)
    with contextlib.suppress(Killed):
        s.deal()
    cancel(s, "B")
    put(s, "B", 92)
    s.deal()
    put(s, "A", 93, key="two")


@script
def key_dealt_beside_a_look(s: Stage) -> None:
    """A deal is committed while a producer is between the journals and the index."""
    s.keep()
    put(s, "A", 90)
    s.when("open", "^keys/[0-9a-f]{2}.keys", s.deal)
    if put(s, "B", 90) is not None:
        s.oracle.violations.append("a key that is held was given away")
    put(s, "A", 91, key="two")
    s.when("open", "^keys/[0-9a-f]{2}.keys", s.deal)
    put(s, "B", 92, key="two", on_conflict="replace")
    put(s, "A", 93, key="three")
    s.when("listdir", "^journal", s.deal)
    if put(s, "B", 93, key="three") is not None:
        s.oracle.violations.append("a key that is held was given away")


@script
def key_moved_beside_a_look(s: Stage) -> None:
    """A message moves, and its old id goes from the index, while a look without a lock reads."""
    put(s, "A", 90)
    s.deal()

    def act() -> None:
        move(s, "A", 91)
        compact(s)

    s.when("open", "^keys/[0-9a-f]{2}.keys", act)
    if s.wheel("B").get(key=KEY) is None:
        s.oracle.violations.append("a key that is held was not found")


@script
def key_dealer_killed_beside_a_handle(s: Stage) -> None:
    """The same, and a handle has read the files of keys before, between and after."""
    s.keep()
    put(s, "A", 90, key="two")
    s.deal()
    put(s, "B", 91)  # it has read the file of its key, and what the first deal entered
    s.wheel("B").get(key="two")
    s.when("rename", "^checkpoint", s.kill_keeper)
    with contextlib.suppress(Killed):
        s.deal()
    taken = put(s, "A", 92, durable=False), put(s, "B", 92, key="two")
    s.deal()
    taken += put(s, "B", 93), put(s, "A", 93, key="two")
    if taken != (None,) * 4:
        s.oracle.violations.append("a key that is held was given away")
    cancel(s, "B")
    put(s, "A", 94)
    s.deal()
    put(s, "B", 95, on_conflict="replace")


@script
def key_rebuilt_beside_a_handle(s: Stage) -> None:
    """A handle finds no file of a key, because it is lost; then the index is rebuilt, and the power is cut."""
    put(s, "A", 90)
    s.keep()
    s.deal()
    audience, s.audience = s.audience, None  # until the end of the rebuild the index is damaged
    disk = s.keep()._store.disk
    for last in disk.listdir(layout.KEYS):
        if layout.parse_key_file(last) is not None:
            disk.unlink(f"{layout.KEYS}/{last}")
    put(s, "B", 90, key="two")
    s.wheel("B").get(key=KEY)
    rebuild(s)
    s.audience = audience
    if put(s, "B", 91) is not None:
        s.oracle.violations.append("a key that is held was given away")
    s.deal()
    cancel(s, "B")
    put(s, "A", 92)


@script
def key_ended_before_the_deal(s: Stage) -> None:
    """A message ends before it is dealt, so its key is in no file; then the power is cut, and the key taken again."""
    s.keep()
    id_ = put(s, "A", 90)
    assert id_ is not None
    s.oracle.cancelling(id_)
    s.wheel("B").cancel(id_, sync="never")
    put(s, "A", 91, key="two", on_conflict="replace", durable=False)
    put(s, "A", 92, key="two", on_conflict="replace", durable=False)
    s.deal()
    put(s, "B", 93)
    s.deal()
    put(s, "B", 94, key="two")


@script
def key_dealt_in_parts(s: Stage) -> None:
    """More is undealt than a deal covers: some keys are in files, others in journals."""
    s.keep()
    for n in range(5):
        put(s, "AB"[n % 2], 90 + n, key=str(n), durable=n % 3 == 0)
        s.put_many("A", 100, 101)
    s.deal()
    if any(put(s, "C", 90, key=str(n)) is not None for n in range(5)):
        s.oracle.violations.append("a key that is held was given away")
    s.deal()
    s.deal()
    move(s, "C", 95, key="3")


@script
def key_compactor_killed(s: Stage) -> None:
    """A keeper that compacts is killed when the new file is in place and its name not durable."""
    put(s, "A", 90)
    for _ in range(3):
        move(s, "A", 91)
        s.deal()
    s.when("sync_dir", "^keys", s.kill_keeper)
    with contextlib.suppress(Killed):
        compact(s)
    cancel(s, "A")
    put(s, "B", 95)
    s.put("B", 96)
    s.put("B", 97)


@script
def key_entry_then_killed(s: Stage) -> None:
    """A producer is killed between the entry and the frame: the key is free."""
    put(s, "B", 90, key="two")
    s.put("A", 90)
    s.when("pwrite", "^journal", lambda: s.kill("A"))
    with contextlib.suppress(Killed):
        put(s, "A", 90)
    put(s, "B", 90)


@script
def key_unflushed_drop(s: Stage) -> None:
    """What had the key is dropped, and the drop is not flushed when another takes the key, durably."""
    id_ = put(s, "A", 90)
    assert id_ is not None
    s.oracle.cancelling(id_)
    s.wheel("B").cancel(id_, sync="never")
    put(s, "A", 91)
    held = holder(s)
    assert held is not None
    s.oracle.cancelling(held)
    put(s, "B", 92, on_conflict="replace", durable=False)
    put(s, "A", 93, on_conflict="replace")


@script
def key_unflushed_own(s: Stage) -> None:
    """The same, in one journal, of which a power cut may keep a later frame and lose an earlier one."""
    id_ = put(s, "A", 90)
    assert id_ is not None
    s.oracle.cancelling(id_)
    s.wheel("A").cancel(id_, sync="never")
    put(s, "A", 91, durable=False)


@script
def key_unflushed_retry(s: Stage) -> None:
    """A message that replaced another, unflushed, is put back by the keeper, whose frame may outlive that one."""
    s.keep()
    put(s, "A", 90)
    put(s, "B", 0, on_conflict="replace", durable=False)
    s.claim()
    s.nack(delay=70)


@script
def key_compacted(s: Stage) -> None:
    """The index is compacted while what holds a key is claimed, and overdue; and while another is overdue and waits."""
    put(s, "A", 0)
    s.claim()
    put(s, "A", 0, key="two")
    s.deal()
    s.wait(5)
    compact(s)
    if put(s, "B", 90) is not None or put(s, "B", 90, key="two") is not None:
        s.oracle.violations.append("a key that is held was given away")


@script
def key_unflushed_ack(s: Stage) -> None:
    """What had the key is acknowledged, and another takes it before the keeper has flushed."""
    put(s, "A", 0)
    s.claim()
    s.ack()
    put(s, "A", 0)
    s.claim()
    s.nack(delay=20)
    put(s, "A", 91, on_conflict="replace")


@script
def key_compacted_early(s: Stage) -> None:
    """A list is compacted while the drop because of which an entry goes is not durable."""
    put(s, "A", 0)
    put(s, "B", 0, key="two")
    s.deal()
    s.claim()
    s.ack()
    s.nack(delay=70)
    s.wait(2)
    compact(s)
    put(s, "A", 91)
    put(s, "B", 91, key="two")


@script
def key_retry(s: Stage) -> None:
    """A message with a key is retried, dealt, and retried again."""
    put(s, "A", 0)
    s.claim()
    s.nack(delay=1)
    s.deal()
    s.wait(2)
    s.claim()
    s.nack(delay=70)
    put(s, "A", 90)
    s.flush()
    put(s, "A", 91, on_conflict="replace")


@script
def key_retry_and_replace(s: Stage) -> None:
    """A message is replaced while the keeper is about to put it back."""
    put(s, "A", 0)
    s.claim()
    s.when("lock", "", lambda: put(s, "A", 90, on_conflict="replace"))
    s.nack(delay=1)
    compact(s)
    put(s, "B", 90)


@script
def key_busy_retry(s: Stage) -> None:
    """A keeper puts a message back while a producer is in the middle of replacing it; neither waits."""
    put(s, "A", 0)
    s.claim()
    (id_,) = s.claimed

    def nack() -> None:
        s.oracle.moving(id_, s.due(3))
        keeper = s.keep()
        keeper.nack(id_, delay=3)
        s.claimed.remove(id_)
        assert id_ in keeper._settler.later

    s.when("pwrite", "^journal", nack)
    put(s, "A", 90, on_conflict="replace")
    s.claim()
    put(s, "B", 91)


@script
def key_retry_in_the_way(s: Stage) -> None:
    """A producer finds a key held, while the keeper is between the look of a retry and its frame."""
    put(s, "A", 0)
    s.claim()
    (id_,) = s.claimed

    def other() -> None:
        with contextlib.suppress(Locked):
            put(s, "B", 90)

    s.when("pwrite", "^journal", other)
    s.nack(id_, delay=5)
    put(s, "B", 90)


@script
def key_death(s: Stage) -> None:
    """A message dies, its key is taken, and it cannot be revived; when the key is free it can."""
    put(s, "A", 0)
    s.claim()
    s.bury()
    put(s, "B", 90)
    revive(s, "A", 30)
    cancel(s, "B")
    revive(s, "A", 30)
    put(s, "B", 90)
    compact(s)
    put(s, "B", 90)


# -- batches, and a rebuild ------------------------------------------------------------------------------------


@script
def key_batch(s: Stage) -> None:
    """Batches take keys and replace each other; others take them one by one, before and after a deal."""
    put(s, "A", 90, key="two")
    put_all(s, "A", 90)
    put_all(s, "B", 91)
    put(s, "B", 92, on_conflict="replace")
    s.deal()
    put_all(s, "A", 93, durable=False)
    put(s, "B", 94, key="two", on_conflict="replace")
    s.deal()
    put_all(s, "B", 95)


@script
def key_batch_lost(s: Stage) -> None:
    """A power cut leaves the messages of a batch; a deal enters their keys, and the power goes again."""
    put(s, "B", 90, key="two")
    put_all(s, "A", 90, durable=False)
    lose_index(s)
    put_all(s, "B", 91, on_conflict="keep", durable=False)
    put(s, "B", 92, key="three", on_conflict="replace", durable=False)
    put_all(s, "A", 93, keys=("four", "five", "six"), durable=False)
    s.deal()
    lose_index(s)
    put_all(s, "C", 94, on_conflict="keep")


@script
def key_batch_torn(s: Stage) -> None:
    """A batch is killed when it is about to write its frame; the next takes its keys."""
    put_all(s, "B", 90)
    s.when("pwrite", "^journal", lambda: s.kill("A"))
    with contextlib.suppress(Killed):
        put_all(s, "A", 91)
    put_all(s, "B", 92)
    put(s, "A", 93, on_conflict="replace")


@script
def key_retry_beside_a_batch(s: Stage) -> None:
    """A keeper puts a message back while a batch replaces it; and while one with the same locks does; nobody waits."""
    put_all(s, "A", 0)
    s.claim()

    def nack(id_: MessageId) -> None:
        s.oracle.moving(id_, s.due(3))
        keeper = s.keep()
        keeper.nack(id_, delay=3)
        s.claimed.remove(id_)
        assert id_ in keeper._settler.later

    first, second, *_ = s.claimed
    s.when("pwrite", "^journal", lambda: nack(first))
    put_all(s, "A", 90)
    s.claim()
    s.when("pwrite", "^journal", lambda: put_all(s, "A", 91, keys=("four", "five", "six")))
    put(s, "B", 92, key="seven")
    s.nack(second, delay=70) if second in s.claimed else None
    put_all(s, "B", 93)


@script
def key_batch_in_the_way(s: Stage) -> None:
    """One comes to take a key while a batch is between its look and its frame."""
    put(s, "B", 90, key="two")
    s.when("pwrite", "^journal", lambda: put_alone(s, "B", 90))
    put_all(s, "A", 90, on_conflict="keep")
    put_alone(s, "B", 91)


@script
def key_alone_in_the_way(s: Stage) -> None:
    """A batch comes while one is between its look and its frame."""
    put_all(s, "A", 90, keys=("two", "three", "four"))
    s.when("pwrite", "^journal", lambda: put_all_alone(s, "A", 90))
    put(s, "B", 92)
    put_all(s, "A", 93, on_conflict="keep")


@script
def key_rebuilt(s: Stage) -> None:
    """The index is rebuilt while keys are in journals and in files, and others are taken."""
    put_all(s, "A", 90)
    s.deal()
    put(s, "B", 91, on_conflict="replace", durable=False)
    spoil(s)
    s.when("rename", "^keys", lambda: put(s, "A", 92, key="two", on_conflict="replace"))
    rebuild(s)
    put_all(s, "B", 93, on_conflict="keep")
    rebuild(s)


def put_alone(s: Stage, who: str, in_s: float) -> None:
    """Enqueue with a key, unless another process has its lock for long."""
    with contextlib.suppress(Locked):
        put(s, who, in_s)


def put_all_alone(s: Stage, who: str, in_s: float) -> None:
    """Enqueue a batch with keys, unless another process has a lock for long."""
    with contextlib.suppress(Locked):
        put_all(s, who, in_s, on_conflict="keep")


@script
def key_batch_retried(s: Stage) -> None:
    """A keeper puts back many messages at once, as a batch."""
    put_all(s, "A", 0)
    s.claim()
    for id_ in list(s.claimed):
        s.nack(id_, delay=1)
    s.deal()
    s.wait(3)
    s.claim()
    put_all(s, "B", 90)
    s.deal()
    put(s, "A", 91, on_conflict="replace")


# -- every small workload ------------------------------------------------------------------------------------

OPERATIONS: dict[str, Callable[[Stage], object]] = {
    "put": lambda s: put(s, "A", 0),
    "put far, unflushed": lambda s: put(s, "B", 200, durable=False),
    "replace": lambda s: put(s, "A", 70, on_conflict="replace"),
    "replace, unflushed": lambda s: put(s, "B", 0, on_conflict="replace", durable=False),
    "batch": lambda s: put_all(s, "A", 60),
    "batch kept, unflushed": lambda s: put_all(s, "B", 1, on_conflict="keep", durable=False),
    "batch, unflushed": lambda s: put_all(s, "A", 60, durable=False),
    "rebuild": rebuild,
    "keep": lambda s: put(s, "B", 1, on_conflict="keep"),
    "put, unflushed": lambda s: put(s, "A", 70, durable=False),
    "flush": lambda s: flush(s, "A"),
    "close": lambda s: s.close("A"),
    "lose the index": lambda s: lose_index(s) if "keys" in s.machine.root.entries else None,
    "power cut": lambda s: s.cut_power("some"),
    "cancel": lambda s: cancel(s, "B"),
    "move": lambda s: move(s, "B", 130),
    "move, unflushed": lambda s: move(s, "A", 0, durable=False),
    "revive": lambda s: revive(s, "A", 2),
    "kill": lambda s: s.kill("A"),
    "ack": lambda s: s.ack() if s.claim() or s.claimed else None,
    "retry": lambda s: s.nack() if s.claim() or s.claimed else None,
    "retry later": lambda s: s.nack(delay=70) if s.claim() or s.claimed else None,
    "bury": lambda s: s.bury() if s.claim() or s.claimed else None,
    "deal": lambda s: s.deal(),
    "compact": compact,
    "kill keeper": lambda s: s.kill_keeper(),
    "look": lambda s: s.look(),
    "a lap later": lambda s: s.wait(61),
}
WORDS = [w for n in (1, 2, 3) for w in itertools.product(OPERATIONS, repeat=n)]
BEGINNINGS = ("empty", "put", "put and claimed")
COUNT = len(WORDS) * len(BEGINNINGS)


def begin(s: Stage, beginning: str) -> None:
    """Bring a stage to where workloads begin."""
    if beginning != "empty":
        put(s, "A", 0)
        put(s, "A", 0, key="two")
    if beginning == "put and claimed":
        s.claim()


def play_word(number: int, *, limit: int = 24, deep: float = 0.1) -> Result:
    """Play one workload, with the power cut at every disk operation of its last act."""
    word, beginning = WORDS[number % len(WORDS)], BEGINNINGS[number // len(WORDS) % len(BEGINNINGS)]

    def before(s: Stage) -> None:
        begin(s, beginning)
        for name in word[:-1]:
            OPERATIONS[name](s)

    sweep = Sweep(number + 1, limit=limit, deep=deep)
    name = f"{beginning}: {', '.join(word)}"
    return sweep.play(lambda s: OPERATIONS[word[-1]](s), before=before, name=name)  # type: ignore[arg-type,return-value]
