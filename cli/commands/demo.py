"""`demo`: the whole job in under 20 seconds: enqueue from many processes, fire, crash, take over, and prove it.

With `--backups` it loses a disk instead: ../disaster.py.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from filewheel import Wheel
from filewheel.clock import SYSTEM_CLOCK
from filewheel.disk.directory import open_directory
from filewheel.message import US_PER_S, to_datetime
from filewheel.tools.verify import verify

from ..demo.disaster import lose_a_disk
from ..demo.ring import HEIGHT, SLOTS, draw
from ..demo.stage import PATIENCE_S, Keeper, Proof, Stage, kill, prove, samples
from ..failure import Failure
from ..show.output import Output
from ..signals import interruptible
from ..verb import verb

_SECOND_WAVE_S = 2.0
_KILL_S = 6.0
_FRAME_S = 0.1
_EVENTS = 6
_ROLES = {"full": ("cyan", False), "empty": (None, False), "hand": ("yellow", True), "hub": (None, True)}


@verb(
    "demo",
    """
    $ filewheel demo --speed 8
    $ filewheel demo --backups 2 --speed 4
    """,
)
@click.option("--speed", type=click.FloatRange(0.5, 8), default=1, metavar="X", help="So many times as fast.")
@click.option(
    "--backups", type=click.IntRange(0, 4), default=0, metavar="N",
    help="Lose a disk instead of a keeper: with a mirror, and from 2 on with shipped backups, too.",
)  # fmt: skip
@click.option("--keep", type=click.Path(), metavar="DIR", help="Keep the wheel and the records in this new directory.")
def command(out: Output, speed: float, backups: int, keep: str | None) -> None:
    """Show the whole job in 20 seconds.

    On a temporary wheel, ten producer processes enqueue some 200 messages as a shop has them: reminders, payment
    time-outs, webhook retries, ends of trials, cache expiries. A keeper process fires them, is killed with SIGKILL in
    the middle, and its standby takes over. Each keeper records what it fired outside the wheel; from those records the
    demo proves that every message fired, none early, and says how many fired twice and how late they were.

    With --backups a producer enqueues into a wheel that has backups, on directories that stand for other disks. In the
    middle the primary's directory is deleted; a backup is promoted, the rest fires there. Judged by the records of the
    producer and of both keepers: what was confirmed, what fired, lost or twice, and for how long nothing fired.
    """
    if backups:
        with _directory(keep) as where, interruptible():
            lose_a_disk(out, where, backups, speed)
            if keep is not None:
                out.note(f"kept in {where}")
        return
    with _directory(keep) as where, interruptible():
        wheel_path = where / "demo.wheel"
        with Wheel.create(wheel_path) as wheel, Stage(where, wheel_path) as stage:
            show = _Show(out, wheel, stage)
            with show:
                took_over_ms = _play(show, stage, speed)
            proof = prove(stage.enqueued(), stage.keepers)
            damage = len(verify(open_directory(wheel_path, write=False)).damage)
            _report(out, proof, stage, took_over_ms, damage)
    if keep is not None:
        out.note(f"kept in {where}: `filewheel -C {wheel_path} inspect`")
    if not proof.holds or damage:
        raise Failure("failed", "the proof failed", hint="--keep DIR keeps the wheel to be looked at")


@contextlib.contextmanager
def _directory(keep: str | None) -> Iterator[Path]:
    if keep is not None:
        os.mkdir(keep)
        yield Path(keep).resolve()
        return
    where = Path(tempfile.mkdtemp(prefix="filewheel-demo-"))
    try:
        yield where
    finally:
        shutil.rmtree(where, ignore_errors=True)


# -- the play -------------------------------------------------------------------------------------------------


def _play(show: _Show, stage: Stage, speed: float) -> float:
    """Run the whole story; return how long nobody fired, in milliseconds."""
    first = stage.keeper()
    stage.await_keeper(first)
    second = stage.keeper()
    show.tell(f"process {first.process.pid} is the keeper, process {second.process.pid} stands by")
    start = time.monotonic()
    acts: list[tuple[float, str]] = [(0.0, "first"), (_SECOND_WAVE_S / speed, "second"), (_KILL_S / speed, "kill")]
    took_over_ms = 0.0
    end = start + (_SECOND_WAVE_S + 12) / speed + PATIENCE_S
    while time.monotonic() < end:
        if acts and time.monotonic() - start >= acts[0][0]:
            act = acts.pop(0)[1]
            if act == "kill":
                took_over_ms = _murder(show, stage, first, second)
            else:
                _produce(show, stage, act, speed)
        show.frame()
        if not acts and not stage.producing() and show.pending == 0:
            break
        time.sleep(_FRAME_S)
    second.process.terminate()
    second.process.wait()
    for keeper in stage.keepers:
        keeper.follow()
    show.frame()
    show.tell("everything has fired")
    return took_over_ms


def _produce(show: _Show, stage: Stage, wave: str, speed: float) -> None:
    messages = 0
    found = samples()
    for name, rows in found.items():
        half = rows[::2] if wave == "first" else rows[1::2]
        stage.producer(name, [{**row, "in": row["in"] / speed} for row in half])
        messages += len(half)
    show.tell(f"{len(found)} producers enqueue {messages} messages")


def _murder(show: _Show, stage: Stage, victim: Keeper, heir: Keeper) -> float:
    killed = time.monotonic()
    kill(victim)
    show.tell(f"kill -9 {victim.process.pid}: the keeper is gone, with what it had in hand")
    stage.await_keeper(heir)
    took_ms = (time.monotonic() - killed) * 1000
    show.tell(f"process {heir.process.pid} took over after {took_ms:.0f} ms")
    return took_ms


# -- the picture ----------------------------------------------------------------------------------------------


class _Show:
    """The live picture on a terminal, plain lines elsewhere."""

    def __init__(self, out: Output, wheel: Wheel, stage: Stage) -> None:
        self._out = out
        self._wheel = wheel
        self._stage = stage
        self._start = time.monotonic()
        self._events: list[str] = []
        self._drawn = 0
        self._said_s = 0
        self._live = out.can_redraw and not out.json and out.rows > HEIGHT + _EVENTS + 2 and out.columns >= 72
        self.pending = -1

    def __enter__(self) -> _Show:
        if self._live:
            self._out.write("Each slot is a second; its number is what is due then; the bracket is now.\n")
            sys.stdout.write("\x1b[?25l")  # no cursor while the picture moves
        return self

    def __exit__(self, *exc: object) -> None:
        if self._live:
            sys.stdout.write("\x1b[?25h")
            sys.stdout.flush()

    def tell(self, text: str) -> None:
        """Say what happened."""
        line = f"{time.monotonic() - self._start:5.1f} s  {text}"
        self._events.append(line)
        if self._live:
            self.frame()
        else:
            self._out.say(line)

    def frame(self) -> None:
        """Look at the wheel and at the records, and draw."""
        now_us = SYSTEM_CLOCK.now_us()
        second_us = now_us // US_PER_S * US_PER_S
        edges = [to_datetime(second_us + i * US_PER_S) for i in range(SLOTS + 1)]
        histogram = self._wheel.histogram(edges)
        self.pending = histogram.before + sum(histogram.counts) + histogram.after
        for keeper in self._stage.keepers:
            keeper.follow()
        late = sorted(late for keeper in self._stage.keepers for _, late in keeper.fired)
        if self._live:
            median = f"p50 {late[len(late) // 2]:.1f} ms late" if late else ""
            hub = [f"{self.pending} pending", f"{len(late)} fired", median, "", *self._who()]
            counts = [histogram.before + histogram.counts[0], *histogram.counts[1:]]
            self._draw(draw(counts, second_us // US_PER_S % SLOTS, hub, self._style, blocks=self._out.blocks))
            return
        elapsed_s = time.monotonic() - self._start
        if int(elapsed_s) > self._said_s:
            self._said_s = int(elapsed_s)
            median = f", half of them within {late[len(late) // 2]:.1f} ms" if late else ""
            self._out.say(f"{elapsed_s:5.1f} s  {self.pending} pending, {len(late)} fired{median}")

    def _who(self) -> list[str]:
        alive = [k for k in self._stage.keepers if k.process.poll() is None]
        roles = ("keeper", "standby")
        return [f"{role} {k.process.pid}" for role, k in zip(roles, alive, strict=False)] + [""] * (2 - len(alive))

    def _style(self, text: str, role: str) -> str:
        colour, bold = _ROLES[role]
        return self._out.style(text, colour, bold=bold, dim=role == "empty")

    def _draw(self, ring: list[str]) -> None:
        events = self._events[-_EVENTS:]
        lines = [*ring, "", *(line[: self._out.columns - 1] for line in events), *[""] * (_EVENTS - len(events))]
        up = f"\x1b[{self._drawn}A" if self._drawn else ""
        sys.stdout.write(up + "".join(f"{line}\x1b[K\n" for line in lines))
        sys.stdout.flush()
        self._drawn = len(lines)


# -- the verdict ----------------------------------------------------------------------------------------------


def _report(out: Output, proof: Proof, stage: Stage, took_over_ms: float, damage: int) -> None:
    p50, p99, most = proof.percentile(0.5), proof.percentile(0.99), proof.percentile(1)
    if out.json:
        fields: dict[str, Any] = {
            "holds": proof.holds and not damage,
            "enqueued": proof.enqueued,
            "producers": stage.producers,
            "fired": proof.fired,
            "missing": proof.missing,
            "unknown": proof.unknown,
            "early": proof.early,
            "twice": proof.twice,
            "take_over_ms": round(took_over_ms, 3),
            "late_ms": {"p50": p50, "p99": p99, "max": most},
            "damage": damage,
        }
        out.record(fields)
        return
    twice = f"{proof.twice}, in hand when the keeper was killed" if proof.twice else "none"
    rows = [
        ("enqueued", f"{proof.enqueued} messages by {stage.producers} processes", bool(proof.enqueued)),
        ("fired", f"{proof.fired - len(proof.unknown)} of them, each at least once", not proof.missing),
        ("never fired", str(len(proof.missing) or "none"), not proof.missing),
        ("early", str(proof.early or "none"), not proof.early),
        ("fired twice", twice, True),
        ("late by", f"{p50:.1f} ms (p50), {p99:.1f} ms (p99), {most:.1f} ms (max)", True),
        ("taken over", f"{took_over_ms:.0f} ms after the kill", True),
        ("the wheel", f"{damage} places damaged" if damage else "verified, no damage", not damage),
    ]
    out.write("")
    out.write(out.style("From the keepers' own records:", bold=True))
    for name, value, good in rows:
        mark = out.style("ok " if good else "BAD", "green" if good else "red", bold=not good)
        out.write(f"  {mark}  {name.ljust(12)}  {value}")
