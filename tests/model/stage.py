"""A stage: one machine on which a script plays, act by act, with a look at the disk between any two of its calls.

Where random histories draw what happens, a script says it: who enqueues, who deals, and what another process does at
the very moment when the dealer is about to write its checkpoint (`when`). Everything runs inline, in one thread.
The `audience` is called after every disk operation; that is where a sweep cuts the power.
Invariant: whatever returns to an act is told to the oracle before the audience is called again.
"""

from __future__ import annotations

import contextlib
import errno
import random
import re
from collections.abc import Callable, Iterator

from filewheel.disk.disk import SYSTEM
from filewheel.disk.replace import replace_file
from filewheel.errors import NotFound
from filewheel.firing.purge import take_out
from filewheel.format import layout
from filewheel.keeper import Keeper
from filewheel.laps.deal import Deal
from filewheel.laps.window import Budget
from filewheel.message import US_PER_S, MessageId
from filewheel.wheel import Wheel
from tests.model.crashes import crash_at_random
from tests.model.history import pending_of
from tests.model.machine import Dir, Machine
from tests.model.oracle import Oracle, Told
from tests.model.process import ProcessDisk
from tests.model.world import ModelClock, exact, make_wheel

Act = Callable[[], object]


def _names(directory: Dir, above: str = "") -> Iterator[tuple[str, bytes]]:
    """Yield the name and the bytes of each file that is in a directory now."""
    for name, target in directory.entries.items():
        if isinstance(target, Dir):
            yield from _names(target, f"{above}{name}/")
        else:
            yield above + name, bytes(target.data)


def _holds(data: bytes, payload: bytes) -> bool:
    """Return whether some bytes hold a packed payload: its length stands before it."""
    return b"\xc4" + bytes([len(payload)]) + payload in data


class Stage:
    """A machine, its processes by name, a clock, an oracle."""

    def __init__(self, seed: int = 1) -> None:
        self.rng = random.Random(f"stage {seed}")
        self.clock = ModelClock()
        self.oracle = Oracle()
        self.start_us = self.clock.wall_us
        self.audience: Callable[[str, str], None] | None = None
        self.wheels: dict[str, tuple[ProcessDisk, Wheel]] = {}
        self.keeper: Keeper | None = None
        self.keeper_disk: ProcessDisk | None = None
        self.claimed: list[MessageId] = []
        self.unflushed: dict[str, list[Told]] = {}
        self._cues: list[tuple[str, str, Act, Callable[[], bool]]] = []
        self._at_cue = False
        self.machine = Machine()
        make_wheel(self.machine, self.clock, self.rng.randbytes)
        self._take_seats()

    def _take_seats(self) -> None:
        self.machine.on_op = self._on_op
        self.machine.before_op = self.machine.mid_read = self._before_op

    def _on_op(self, kind: str, name: str) -> None:
        if self.audience is not None:
            self.audience(kind, name)

    # -- cues ------------------------------------------------------------------------------------------------

    def when(self, kind: str, name: str, act: Act, *, free: bool = False) -> None:
        """Do `act` just before the next call of this kind on a name that matches.

        With `free`, not under the keeper's lock, where another thread of the keeper could not run.
        """
        self._cues.append((kind, name, act, self._is_free if free else lambda: True))

    def _is_free(self) -> bool:
        return self.keeper is None or not self.keeper._lock._is_owned()  # type: ignore[attr-defined]

    def _before_op(self, kind: str, name: str) -> None:
        if self._at_cue:
            return
        for cue in self._cues:
            if cue[0] == kind and re.search(cue[1], name) and cue[3]():
                self._cues.remove(cue)
                self._at_cue = True
                try:
                    cue[2]()
                finally:
                    self._at_cue = False
                return

    def all_cues_given(self) -> bool:
        """Tell whether everything that was to happen at a moment has happened: a schedule that misses it is void."""
        return not self._cues

    # -- producers -------------------------------------------------------------------------------------------

    def wheel(self, who: str) -> Wheel:
        """Return the wheel that a producer has open."""
        if who not in self.wheels:
            disk = ProcessDisk(self.machine)
            opened = Wheel(
                "model.wheel", clock=self.clock, env=SYSTEM.using(disk=lambda path: disk, entropy=self.rng.randbytes)
            )
            self.wheels[who] = disk, opened
        return self.wheels[who][1]

    def due(self, in_s: float) -> int:
        """Return the due that lies so many seconds after the stage began."""
        return self.start_us + round(in_s * US_PER_S)

    def put(self, who: str, in_s: float, *, durable: bool = True) -> MessageId:
        """Enqueue one message, durable on return unless it is asked not to be."""
        due_us = self.due(in_s)
        told = self.oracle.new(due_us)
        id_ = self.wheel(who).enqueue(told.payload, at=exact(due_us), sync="always" if durable else "never")
        self.oracle.enqueued(told, id_, durable=durable)
        if not durable:
            self.unflushed.setdefault(who, []).append(told)
        return id_

    def put_many(self, who: str, *in_s: float) -> list[MessageId]:
        """Enqueue several in one commit."""
        dues = [self.due(s) for s in in_s]
        tolds = [self.oracle.new(d) for d in dues]
        ids = list(self.wheel(who).enqueue_many([t.payload for t in tolds], at=[exact(d) for d in dues]))
        for told, id_ in zip(tolds, ids, strict=True):
            self.oracle.enqueued(told, id_)
        return ids

    def cancel(self, who: str, id_: MessageId) -> None:
        """Cancel, durable on return."""
        self.oracle.cancelling(id_)
        self.wheel(who).cancel(id_)
        self.oracle.is_cancelled(id_)

    def move(self, who: str, id_: MessageId, in_s: float, *, durable: bool = True) -> MessageId | None:
        """Reschedule; None when it was not pending."""
        due_us = self.due(in_s)
        self.oracle.moving(id_, due_us)
        try:
            new = self.wheel(who).reschedule(id_, at=exact(due_us), sync="always" if durable else "never")
        except NotFound:
            return None
        self.oracle.is_moved(id_, new, durable=durable)
        return new

    def close(self, who: str) -> None:
        """Close a producer's wheel: what it enqueued is durable then."""
        if who in self.wheels:
            self.wheel(who).close()
            self.wheels.pop(who)
            self.oracle.told += 1
            for told in self.unflushed.pop(who, []):
                told.enqueued = True

    def list(self, who: str) -> None:
        """List the wheel without a lock: everything that was promised and is not finished is there."""
        promised = [t for t in self.oracle.messages.values() if t.enqueued and not t.may_be_gone]
        found = {m.payload for m in self.wheel(who).list()}
        self.oracle.violations += [f"a reader does not see {t.payload!r}" for t in promised if t.payload not in found]

    def kill(self, who: str) -> None:
        """Kill a producer."""
        if who in self.wheels:
            self.wheels.pop(who)[0].kill()

    # -- the keeper ------------------------------------------------------------------------------------------

    def keep(self) -> Keeper:
        """Return the keeper, opening it if there is none."""
        if self.keeper is None:
            disk = ProcessDisk(self.machine)
            self.keeper = Keeper(
                "model.wheel",
                clock=self.clock,
                env=SYSTEM.using(disk=lambda path: disk, entropy=self.rng.randbytes),
                background=False,
                budget=Budget(records=16, bytes=4000),
            )
            self.keeper_disk = disk
        return self.keeper

    def claim(self, limit: int = 10) -> list[MessageId]:
        """Claim what is due."""
        keeper = self.keep()
        cancelled = set(self.oracle.cancelled)
        now_us = self.clock.wall_us
        batch = keeper.claim(limit)
        ids = [m.id for m in batch if self.oracle.fired(m, now_us, cancelled)]
        self.oracle.violations += [f"{i} was handed out while it was claimed" for i in ids if i in self.claimed]
        self.claimed += ids
        return ids

    def ack(self, id_: MessageId | None = None, *, durable: bool = False) -> None:
        """Acknowledge a claimed message, the first if none is named."""
        id_ = id_ or self.claimed[0]
        self.oracle.cancelling(id_)
        self.keep().ack(id_, sync="always" if durable else "never")
        self.claimed.remove(id_)
        self.oracle.of(id_).acked.add(id_)
        self.oracle.unflushed.append(id_)
        if durable:
            self.oracle.flushed()

    def nack(self, id_: MessageId | None = None, *, delay: float = 0) -> MessageId | None:
        """Put a claimed message back."""
        id_ = id_ or self.claimed[0]
        self.oracle.moving(id_, self.clock.wall_us + round(delay * US_PER_S))
        new = self.keep().nack(id_, delay=delay)
        self._moved(id_, new)
        return new

    def bury(self, id_: MessageId | None = None) -> MessageId | None:
        """Move a claimed message to the dead letters."""
        id_ = id_ or self.claimed[0]
        new = self.keep().bury(id_)
        self._moved(id_, new)
        return new

    def _moved(self, id_: MessageId, new: MessageId | None) -> None:
        self.claimed.remove(id_)
        if self.keeper is not None and id_ in self.keeper._settler.later:
            return  # it waits for a lock that a producer has, and is what it was
        self.oracle.of(id_).acked.add(id_)
        if new is not None:
            self.oracle.told += 1
            self.oracle.wins(id_, "retry or burial")
            self.oracle.unflushed.append(id_)
            self.oracle.of_id[new] = self.oracle.of_id[id_]

    def flush(self) -> None:
        """Flush what the keeper wrote."""
        self.keep()._store.own.flush()
        self.oracle.flushed()

    def deal(self, *, spread: bool = True, finished: bool = True, short: int | None = None) -> None:
        """Deal what the journals hold; with `finished`, let go of files of which everything is done.

        `short` is as on a full disk: of the journals it covers so many records, if that gives more room than it takes.
        """
        keeper = self.keep()
        done = keeper._head.finished if finished else None
        if short is not None:
            try:
                Deal(keeper._store, spread=False, finished=done, is_short=True, chunk_records=short).run()
            except OSError as exc:
                if exc.errno != errno.ENOSPC:
                    raise
        else:
            Deal(keeper._store, spread=spread, finished=done).run()

    def purge(self, *, beside: bool = False) -> None:
        """Take out what has ended, as a keeper that is asked; of what was acknowledged or cancelled nothing is left.

        Producers have closed, unless `beside` one: it has a segment that only it may end, so nothing is looked for.
        """
        ended = [] if beside else [self.oracle.of(id_).payload for id_ in self.oracle.cancelled | self.oracle.ending]
        disk = ProcessDisk(self.machine)
        replace_file(disk, layout.PURGED, layout.PURGED_TMP, b"", flush=False)
        with contextlib.suppress(FileExistsError):
            disk.mkdir(layout.KILLS)
        disk.close(disk.open(layout.purge(b"asks"), "x"))
        housekeeper = self.keep()._housekeeper
        for _ in take_out(housekeeper._store, housekeeper._keys, spread=True, finished=housekeeper._finished):
            pass
        self.oracle.flushed()
        names = [*_names(self.machine.root)]
        for payload in ended:
            if all(p != payload for p, _ in pending_of(self.keep()).values()):
                self.oracle.violations += [f"{payload!r} is in {n}" for n, data in names if _holds(data, payload)]

    def look(self) -> None:
        """Let the housekeeper do what it does a few times a second."""
        housekeeper = self.keep()._housekeeper
        housekeeper._dirty = True
        housekeeper._looked_us = -(1 << 60)
        housekeeper.step()
        self.oracle.flushed()

    def close_keeper(self) -> None:
        """Close the keeper, which deals everything."""
        if self.keeper is not None:
            keeper, self.keeper = self.keeper, None
            self.claimed.clear()
            keeper.close()
            self.oracle.flushed()

    def kill_keeper(self) -> None:
        """Kill the keeper."""
        if self.keeper_disk is not None:
            self.keeper_disk.kill()
            self.keeper = self.keeper_disk = None
            self.claimed.clear()

    # -- the world -------------------------------------------------------------------------------------------

    def wait(self, seconds: float) -> None:
        """Let time pass."""
        self.clock.advance(round(seconds * US_PER_S))

    def step_clock(self, seconds: float) -> None:
        """Set the wall clock forward or back."""
        self.clock.step(round(seconds * US_PER_S))

    def kill_all(self) -> None:
        """Kill every process; the page cache stays."""
        for who in list(self.wheels):
            self.kill(who)
        self.kill_keeper()

    def cut_power(self, mode: str = "none") -> None:
        """Lose power: what was not flushed is gone ("none" of it persists), or all of it was written back just now."""
        self.kill_all()
        self.machine = crash_at_random(self.machine, self.rng, mode)
        self.oracle.power_cut()
        self._take_seats()
