"""Directed scripts: for each hazard that chance rarely brings about, the schedule that does.

Each is swept: the power is cut at every one of its disk operations. The name is that of the mutant it was written for.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from tests.model.history import Result
from tests.model.process import Killed
from tests.model.stage import Stage
from tests.model.sweep import Sweep

SCRIPTS: dict[str, Callable[[Stage], None]] = {}
STATES = 60
"""How many states of a moment are tried, where there are more (Sweep.limit)."""


def script(function: Callable[[Stage], None]) -> Callable[[Stage], None]:
    """Make a function a directed script, under its name with dashes."""
    SCRIPTS[function.__name__.replace("_", "-")] = function
    return function


def play(name: str, *, seed: int = 1, limit: int = STATES, deep: float = 0.3) -> Result:
    """Play one script, with the power cut everywhere."""
    return Sweep(seed, limit=limit, deep=deep).play(SCRIPTS[name], name=name)


@script
def early_drop_forgotten(s: Stage) -> None:
    """The canceller's journal is read before that of the message: one pass meets the drop first."""
    s.put("B", 100)
    s.put("A", 100)
    s.claim()
    id_ = s.put("A", 0)
    s.cancel("B", id_)
    s.claim()


@script
def others_unflushed(s: Stage) -> None:
    """The keeper reads a reschedule that is not flushed, sees its second finished, and lets the file go."""
    id_ = s.put("A", 0)
    s.deal()
    s.wait(2)
    s.keep()

    def expire() -> None:
        s.claim()
        s.deal(short=0)

    s.when("fdatasync", "^journal", expire)
    s.move("B", id_, 200)


@script
def own_unflushed(s: Stage) -> None:
    """A retry is not flushed, and the file of what was retried goes with a deal that leaves the journals alone."""
    s.put("A", 0)
    s.deal()
    s.wait(2)
    s.claim()
    s.nack(delay=70)
    s.deal(short=0)


@script
def later_drops(s: Stage) -> None:
    """A message below the cut is rescheduled, not flushed, while the deal is running."""
    s.keep()
    id_ = s.put("A", 30)
    s.put("B", 31)
    s.cancel("B", s.put("B", 32))  # only for a drop does a deal look at what is above the cut
    s.when("open", "^checkpoint", lambda: None)  # the deal is past its look at what is above the cut

    def move() -> None:
        s.when("listdir", "^journal", lambda: s.move("B", id_, 200, durable=False))

    s.when("listdir", "^journal", move)
    s.deal()


@script
def short_unflushed(s: Stage) -> None:
    """On a full disk a deal covers a message that is put back, not flushed, while the deal runs."""
    s.keep()
    s.put("A", 0)
    s.claim()

    def put_back() -> None:
        s.nack(delay=70)

    journal = s.wheel("A")._journal
    assert journal is not None
    s.when("fdatasync", "^journal", put_back, free=True)
    s.close("A")
    s.deal(short=5)


@script
def short_deals(s: Stage) -> None:
    """On a full disk a few records at a time are covered: fired, moved and cancelled ones, and one that waits."""
    ids = [s.put("A", n / 10) for n in range(4)]
    far = [s.put("A", 300 + n) for n in range(3)]
    s.wait(2)
    s.claim(4)
    s.ack()
    s.nack(delay=70)
    s.cancel("B", far[0])
    s.move("B", far[1], 140)
    s.close("A")
    s.deal(short=3)
    s.ack()
    for _ in range(4):
        s.deal(short=3)
    s.close("B")
    s.deal(short=100)
    assert ids


@script
def one_look(s: Stage) -> None:
    """Between the reading of two journals one gains a message, and the other its cancel."""
    s.put("A", 100)
    s.put("B", 100)
    s.claim()
    s.put("B", 101)

    def both() -> None:
        s.cancel("B", s.put("A", 30))

    s.when("size", journal_of(s, "B"), both)
    s.deal()
    s.deal()


@script
def claimed_again(s: Stage) -> None:
    """So much arrives that is earlier than what is claimed that the frontier falls below it."""
    s.put("A", -1)
    s.claim()
    s.put_many("A", *(-50 + i / 10 for i in range(24)))
    for _ in range(8):
        s.claim(4)
        while len(s.claimed) > 1:
            s.ack(s.claimed[-1])


@script
def close_unflushed(s: Stage) -> None:
    """What was enqueued with sync="never" is durable when the handle is closed."""
    s.put("A", 30, durable=False)
    s.put("A", 31, durable=False)
    s.close("A")


@script
def snapshot_once(s: Stage) -> None:
    """A deal commits between a reader's look at the checkpoint and its look at the journals."""
    s.put("A", 30)
    s.close("A")
    s.keep()
    s.wheel("R")
    s.when("listdir", "^journal", s.deal)
    s.list("R")


@script
def live_skips(s: Stage) -> None:
    """A reader's two pages are of two moments: it sees a later frame, and zeros where an earlier one is now."""
    live_skips_with(s, look_ahead=False)


def live_skips_with(s: Stage, *, look_ahead: bool) -> None:
    """Put two messages between the two pages of a keeper's read."""
    for _ in range(3):
        s.put("A", 50)
    s.claim()

    def more() -> None:
        s.put("A", 0)
        s.put("A", 0)

    s.when("mid_read", journal_of(s, "A"), more)
    s.keep()._store._locks_tested_us = -1_000_000 if look_ahead else s.clock.run_us
    s.claim()
    s.claim()


@script
def no_second_look(s: Stage) -> None:
    """The same, when the keeper looks ahead: what it missed was durable, says the later frame, and is there."""
    live_skips_with(s, look_ahead=True)


@script
def no_sync_first(s: Stage) -> None:
    """A keeper is killed when its checkpoint is in place and not durable; the next one believes it."""
    for _ in range(12):
        s.put("A", 90)
    s.when("sync_dir", "^$", s.kill_keeper)
    with contextlib.suppress(Killed):
        s.deal()
    s.keep()
    s.put("A", 91)


@script
def old_listing(s: Stage) -> None:
    """A writer goes on in its next segment between the keeper's listing and its look at the lock."""
    s.put("A", 50)
    s.claim()
    journal = s.wheel("A")._journal
    assert journal is not None
    s.when("lock", "", journal.rotate)
    s.keep()._store._locks_tested_us = -1_000_000
    s.claim()
    id_ = s.put("A", 0)
    s.claim()
    if id_ not in s.claimed:
        s.oracle.violations.append("what a writer put into its next segment is not seen")


@script
def anew(s: Stage) -> None:
    """Of a far lap more than half is cancelled: a deal writes the rest to a new file, and the old one goes."""
    ids = [s.put("A", 400 + n) for n in range(4)]
    s.put("A", 200)
    s.deal()
    for id_ in ids[:3]:
        s.cancel("B", id_)
    s.deal()
    s.deal()
    s.cancel("B", ids[3])
    s.deal()
    s.deal()
    s.put("A", 402)
    s.deal()


@script
def anew_drops_late(s: Stage) -> None:
    """The deal that writes a lap anew also has new messages for it, and cancels of some that it holds."""
    ids = [s.put("A", 400 + n) for n in range(6)]
    s.deal()
    for id_ in ids[:4]:
        s.cancel("B", id_)
    s.deal()
    s.cancel("B", ids[4])
    s.put("A", 405.5)
    s.cancel("B", s.put("A", 405.7))
    s.deal()
    s.deal()


@script
def anew_beside_a_reader(s: Stage) -> None:
    """A reader has read the checkpoint when the lap that it names is dealt anew; then the lap comes near."""
    ids = [s.put("A", 130 + n) for n in range(4)]
    s.deal()
    for id_ in ids[1:]:
        s.cancel("B", id_)
    s.deal()
    s.wheel("R")
    s.when("open", "^laps/.*lap", s.deal)
    s.list("R")
    s.wait(70)
    s.deal()
    s.list("R")


@script
def anew_while_it_fires(s: Stage) -> None:
    """A lap that is past is dealt anew while its messages are claimed; then it is expired."""
    for n in range(5):
        s.put("A", n / 10)
    s.deal(spread=False)
    s.wait(3)
    s.claim(5)
    for _ in range(3):
        s.ack()
    s.flush()
    s.deal(spread=False)
    s.deal(spread=False)
    s.nack(delay=70)
    s.ack(durable=True)
    s.deal()
    s.deal()


@script
def purged(s: Stage) -> None:
    """Messages have ended in every way, and some wait: a purge leaves those alone, and nothing of the others."""
    far = [s.put("A", 400 + n) for n in range(4)]
    many = [s.put("A", 200 + n) for n in range(6)]
    s.deal()
    s.put("A", 0)
    s.put("A", 0.5)
    s.cancel("B", many[1])  # too few for a deal by itself
    s.cancel("B", far[0])
    s.cancel("B", far[2])
    s.move("B", far[3], 500)
    s.wait(1)
    s.claim(2)
    s.ack(durable=True)
    s.nack(delay=70)
    s.cancel("B", s.put("A", 401.5))
    s.close("A")
    s.close("B")
    s.purge()
    s.put("A", 402)
    s.close("A")
    s.purge()


@script
def purged_beside_a_writer(s: Stage) -> None:
    """A producer lives: it goes on in a new segment after the mark, and what it wrote meanwhile is not lost."""
    ids = [s.put("A", 400 + n) for n in range(3)]
    s.cancel("A", ids[0])
    s.when("open", "^laps/", lambda: s.put("A", 200))
    s.purge(beside=True)
    s.wait(1)
    s.put("A", 300)
    s.deal()
    s.deal()


def journal_of(s: Stage, who: str) -> str:
    """Return a pattern for the names of a producer's segments."""
    journal = s.wheel(who)._journal
    assert journal is not None
    return f"^journal/{journal.writer}"


from tests.model import keyed as keyed  # noqa: E402 - its scripts are added to the list above
