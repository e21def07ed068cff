"""A caller that uses a wheel while its disk fails, and tells what it was told, before and after each call.

It goes on as a careful program would: an error is noted and the call is made again; after a flush that failed it
closes the handle and opens another. What it says goes down a pipe, so that it survives a kill (promises.py reads it).
Invariant: whatever leaves the library and is not of its error tree is said to be `bare`.
"""

from __future__ import annotations

import gc
import os
import random
import traceback
from collections.abc import Callable, Sequence
from typing import Any

from filewheel import Closed, FilewheelError, Keeper, Message, MessageId, NotClaimed, NotFound, Poisoned, Wheel
from filewheel.disk.disk import SYSTEM
from filewheel.errors import disk_error
from filewheel.laps.window import Budget
from filewheel.message import US_PER_S
from tests.support import FakeClock

TRIES = 4

Say = Callable[[dict[str, Any]], None]
Fact = dict[str, Any]


class Actor:
    """One process that enqueues, or fires, or both. Not thread-safe."""

    def __init__(self, path: str, say: Say, *, ids: Sequence[str] = (), name: str = "r", now_us: int = 0) -> None:
        self.path = path
        self.say = say
        self.ids = [MessageId(bytes.fromhex(i)) for i in ids]
        """What was enqueued so far, in order."""
        self.clock = FakeClock(now_us) if now_us else FakeClock()
        self._name = name
        self._serial = 0
        self._random = random.Random(name)
        self._wheel: Wheel | None = None
        self._keeper: Keeper | None = None
        self._failed = False
        """Something raised: a claim may be lost, a call may have happened all the same."""

    # -- handles ---------------------------------------------------------------------------------------------

    def entropy(self, size: int) -> bytes:
        """Random bytes that are the same in each run, so that each run makes the same calls."""
        return self._random.randbytes(size)

    history = 0
    """How many ends a keeper keeps that is opened from now on."""

    def wheel(self) -> Wheel:
        """Return the open wheel."""
        if self._wheel is None:
            self._wheel = Wheel(self.path, clock=self.clock, env=SYSTEM.using(entropy=self.entropy))
        return self._wheel

    def keeper(self) -> Keeper:
        """Return the keeper, that is, be it."""
        if self._keeper is None:
            budget = Budget(records=16, bytes=4000)
            self._keeper = Keeper(
                self.path,
                wait=False,
                clock=self.clock,
                env=SYSTEM.using(entropy=self.entropy),
                background=False,
                budget=budget,
                history=self.history,
            )
        return self._keeper

    def close(self, *, lost: bool = False) -> None:
        """Close both handles; what was enqueued with any `sync` is durable if that worked, and nothing was `lost`."""
        if lost:
            self.say({"op": "lost", "phase": "end"})
        for role in ("keeper", "wheel"):
            handle = getattr(self, f"_{role}")
            setattr(self, f"_{role}", None)
            if handle is None:
                continue
            try:
                handle.close()
            except FilewheelError as exc:
                self._raised("close", exc, {})
                self.say({"op": "lost", "phase": "end"})
            except Exception:
                self._bare("close")
                self.say({"op": "lost", "phase": "end"})
            else:
                self.say({"op": "flush", "phase": "end", "role": role})

    def end(self) -> None:
        """Close everything and tell which files are open still."""
        self.close()
        gc.collect()
        place = os.path.dirname(self.path)
        still = []
        for fd in os.listdir("/proc/self/fd"):
            try:
                target = os.readlink(f"/proc/self/fd/{fd}")
            except OSError:
                continue
            if target.startswith(place):
                still.append(target[len(place) :])
        self.say({"op": "end", "phase": "end", "open": sorted(still)})

    def _raised(self, op: str, exc: FilewheelError, given: Fact) -> None:
        self._failed = True
        self.say({"op": op, "phase": "raised", "error": type(exc).__name__, "says": str(exc), **given})

    def _bare(self, op: str) -> None:
        self._failed = True
        self.say({"op": op, "phase": "bare", "trace": traceback.format_exc()})

    def do(self, op: str, call: Callable[[Fact], Fact | None], facts: Callable[[], Fact] = dict) -> Fact | None:
        """Make a call, again after an error; say what it was asked and what it told. None when it came to nothing."""
        for _ in range(TRIES):
            given = facts()
            self.say({"op": op, "phase": "begin", **given})
            try:
                told = call(given) or {}
            except (NotFound, NotClaimed) as exc:
                self._raised(op if self._failed else f"unknown {op}", exc, given)
                return None
            except FilewheelError as exc:
                self._raised(op, exc, given)
                if isinstance(exc, (Poisoned, Closed)) or self._keeper_is_broken():
                    self.close(lost=True)
            except Exception:
                self._bare(op)
                self.close(lost=True)
            else:
                self.say({"op": op, "phase": "end", **given, **told})
                return {**given, **told}
        self.say({"op": op, "phase": "stuck"})
        return None

    def _keeper_is_broken(self) -> bool:
        return self._keeper is not None and self._keeper._broken is not None

    # -- producing -------------------------------------------------------------------------------------------

    def create(self) -> bool:
        """Make the wheel, and tell whether that worked; meeting one that an earlier try made is as good."""

        def call(given: Fact) -> None:
            Wheel.create(
                self.path, slots=60, exist_ok=True, clock=self.clock, env=SYSTEM.using(entropy=self.entropy)
            ).close()

        return self.do("create", call) is not None

    def enqueue(self, *delays: float, sync: Any = "always", size: int = 0) -> None:
        """Enqueue one message for each delay, in one call."""

        def facts() -> Fact:
            payloads = []
            for _ in delays:
                self._serial += 1
                payloads.append(f"{self._name}{self._serial}".ljust(size, "."))
            dues = [self.clock.now_us() + round(d * US_PER_S) for d in delays]
            return {"payloads": payloads, "dues": dues, "sync": sync}

        def call(given: Fact) -> Fact:
            wheel, payloads = self.wheel(), [p.encode() for p in given["payloads"]]
            if len(payloads) == 1:
                ids = [wheel.enqueue(payloads[0], delay=delays[0], sync=sync, topic="t")]
            else:
                ids = list(wheel.enqueue_many(payloads, delay=delays, sync=sync, topic="t"))
            return {"ids": [i.hex() for i in ids]}

        told = self.do("enqueue", call, facts)
        if told is not None:
            self.ids += [MessageId(bytes.fromhex(i)) for i in told["ids"]]

    def flush(self) -> None:
        """Make durable what was enqueued so far."""
        self.do("flush", lambda given: self.wheel().flush(), lambda: {"role": "wheel"})

    def cancel(self, *ids: MessageId, sync: Any = "always") -> None:
        """Cancel messages, in one call."""

        def call(given: Fact) -> Fact:
            found = self.wheel().cancel_many(ids, sync=sync)
            return {"found": [i.hex() for i in found]}

        self.do("cancel", call, lambda: {"ids": [i.hex() for i in ids], "sync": sync})

    def reschedule(self, id_: MessageId, delay: float, *, sync: Any = "always") -> None:
        """Move a message to another time."""
        due_us = self.clock.now_us() + round(delay * US_PER_S)

        def call(given: Fact) -> Fact:
            return {"new": self.wheel().reschedule(id_, delay=delay, sync=sync).hex()}

        self.do("reschedule", call, lambda: {"ids": [id_.hex()], "due": due_us, "sync": sync})

    def add(self, messages: Sequence[Message]) -> None:
        """Add messages with the ids that they have, as `load` does."""

        def facts() -> Fact:
            return {
                "payloads": [m.payload.decode() for m in messages],
                "dues": [m.due_us for m in messages],
                "sync": "always",
            }

        def call(given: Fact) -> Fact:
            self.wheel().add(messages, sync="always")
            return {"ids": [m.id.hex() for m in messages]}

        self.do("enqueue", call, facts)

    # -- looking ---------------------------------------------------------------------------------------------

    def look(self, what: str, call: Callable[[Wheel], Any]) -> Any:
        """Read something; it makes no promise but to fail in the library's own words."""
        found: list[Any] = []
        self.do(what, lambda given: found.append(call(self.wheel())))
        return found[0] if found else None

    # -- firing ----------------------------------------------------------------------------------------------

    def claim(self, limit: int = 100) -> list[MessageId]:
        """Claim what is due; return the ids."""

        def call(given: Fact) -> Fact:
            batch = self.keeper().claim(limit)
            return {
                "now": self.clock.now_us(),
                "fired": [[m.id.hex(), m.payload.decode(), m.due_us] for m in batch],
            }

        told = self.do("claim", call) or {"fired": []}
        return [MessageId(bytes.fromhex(i)) for i, _, _ in told["fired"]]

    def ack(self, *ids: MessageId, sync: Any = "never") -> None:
        """Acknowledge what was claimed."""
        if ids:
            facts = {"ids": [i.hex() for i in ids], "sync": sync}
            self.do("ack", lambda given: self._of_keeper(lambda k: k.ack(ids, sync=sync)), lambda: facts)

    def nack(self, id_: MessageId, delay: float, *, sync: Any = "never") -> None:
        """Put a claimed message back."""
        due_us = self.clock.now_us() + round(delay * US_PER_S)

        def call(given: Fact) -> Fact | None:
            new = self.keeper().nack(id_, delay=delay, sync=sync)
            return {"new": new.hex() if new else None}

        self.do("nack", call, lambda: {"ids": [id_.hex()], "due": due_us, "sync": sync})

    def bury(self, id_: MessageId, *, sync: Any = "never") -> None:
        """Make a claimed message a dead letter."""

        def call(given: Fact) -> Fact | None:
            new = self.keeper().bury(id_, reason="no", sync=sync)
            return {"new": new.hex() if new else None}

        self.do("bury", call, lambda: {"ids": [id_.hex()], "sync": sync})

    def _of_keeper(self, call: Callable[[Keeper], Any]) -> None:
        call(self.keeper())

    def keep_house(self, *, seconds: float = 0) -> None:
        """Let time pass, then do what the keeper does in the background; an error ends the keeper, as there."""
        self.clock.advance(seconds)

        def call(given: Fact) -> None:
            keeper = self.keeper()
            keeper._housekeeper._looked_us = -(1 << 60)
            try:
                keeper._housekeeper.step()
            except OSError as exc:
                keeper._fail(disk_error(exc, self.path))
                raise disk_error(exc, self.path) from exc
            except FilewheelError as exc:
                keeper._fail(exc)
                raise

        self.do("flush", call, lambda: {"role": "keeper"})
