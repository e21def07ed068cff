"""A keyed topic: a record replaces the waiting one with its key, and one without a value cancels it.

The holder of a key is found in the wheel's index of unique keys (docs/adr/0014-unique-keys.md): memory does not grow,
and no crash leaves it wrong, because the index says only which messages to look at. A record acts on holders of smaller
offsets alone. After a crash the log is read again, and an old record must not replace its own successor. A record that
is done still replaces its predecessors: they may be back until it is read again.
Invariant: after each batch at most one record of a key waits, the one with the largest offset that was taken in.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence

from filewheel.errors import Locked
from filewheel.kafka.partition.log_keeper import LogKeeper
from filewheel.kafka.partition.packing import Put, name_of
from filewheel.kafka.records.fate import id_of, offset_of


@contextlib.contextmanager
def settled_keys(
    keeper: LogKeeper, puts: Sequence[Put], is_done: Callable[[Put], bool], now_us: int
) -> Iterator[tuple[list[Put], list[bytes]]]:
    """Decide what a batch of consecutive records does: in a `with`, which records wait, and which messages are dropped.

    Both are written within the `with`, as one frame. Cost: 30 µs a record with a key, and a flush. Raises Locked.
    """
    last = {put.key: put for put in puts if put.key is not None}
    names = {key: name_of(key) for key in last}
    with keeper.hold_keys(names.values()) as hold:
        if hold.busy:
            raise Locked("another process has the lock of a key", role="key", path=keeper.directory.path)
        holders = hold.look_all(names.values(), now_us)
        kept: list[Put] = []
        cancelled: list[bytes] = []
        for put in puts:
            holder = None
            if put.key is not None:
                if put is not last[put.key]:  # mutant: kafka-key-twice
                    continue  # its successor is in this batch
                holder = holders[names[put.key]].id
            if holder is not None:
                if offset_of(holder) >= put.offset:  # mutant: kafka-key-goes-back
                    continue
                cancelled.append(bytes(holder))
            # mutant: kafka-done-replaces-nothing
            if not put.cancels and not is_done(put):
                kept.append(put)
        # U2: entered before the frame. A crash in between leaves entries of messages that are not there.
        keeper.enter_keys(hold, [(names[p.key], id_of(p.due_us, p.offset)) for p in kept if p.key is not None])
        yield kept, cancelled
