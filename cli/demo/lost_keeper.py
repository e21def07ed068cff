"""The demo that loses a keeper: many producers, a keeper killed with SIGKILL, and its standby taking over.

Invariant: every figure of the report comes from the keepers' files outside the wheel.
"""

from __future__ import annotations

import time
from pathlib import Path

from filewheel import Wheel
from filewheel.tools import open_directory
from filewheel.tools.verify import verify

from .. import times
from ..failure import Failure
from ..show.output import Output
from ..times import US_PER_S, to_datetime
from .live import Live
from .proof import Proof, print_proof, prove
from .ring import HEIGHT, SLOTS, draw
from .stage import PATIENCE_S, DemoStage, KeeperProcess, kill, samples

_SECOND_WAVE_S = 2.0
_KILL_S = 6.0
_FRAME_S = 0.1
_EVENTS = 6
_ROLES = {"full": ("cyan", False), "empty": (None, False), "hand": ("yellow", True), "hub": (None, True)}


def lose_a_keeper(out: Output, where: Path, speed: float) -> None:
    """Play it in this directory and print the proof. Raises Failure when the proof fails."""
    wheel_path = where / "demo.wheel"
    with Wheel.create(wheel_path) as wheel, DemoStage(where, wheel_path) as stage:
        with _Picture(out, wheel, stage) as picture:
            took_over_ms = _play(picture, stage, speed)
        proof = prove(stage.enqueued(), stage.keepers)
        damage = len(verify(open_directory(wheel_path, write=False)).damage)
        _report(out, proof, stage.producers, took_over_ms, damage)
    if not proof.holds or damage:
        raise Failure("failed", "the proof failed", hint="--keep DIR keeps the wheel, to inspect it")


def _play(picture: _Picture, stage: DemoStage, speed: float) -> float:
    """Run the play; return for how many milliseconds no keeper ran."""
    first = stage.keeper()
    stage.await_keeper(first)
    second = stage.keeper()
    picture.tell(f"process {first.process.pid} is the keeper, process {second.process.pid} stands by")
    start = time.monotonic()
    acts: list[tuple[float, str]] = [(0.0, "first"), (_SECOND_WAVE_S / speed, "second"), (_KILL_S / speed, "kill")]
    took_over_ms = 0.0
    end = start + (_SECOND_WAVE_S + 12) / speed + PATIENCE_S
    while time.monotonic() < end:
        if acts and time.monotonic() - start >= acts[0][0]:
            act = acts.pop(0)[1]
            if act == "kill":
                took_over_ms = _kill(picture, stage, first, second)
            else:
                _produce(picture, stage, act, speed)
        picture.frame()
        if not acts and not stage.producing() and picture.pending == 0:
            break
        time.sleep(_FRAME_S)
    second.process.terminate()
    second.process.wait()
    picture.frame()
    picture.tell("everything has fired")
    return took_over_ms


def _produce(picture: _Picture, stage: DemoStage, wave: str, speed: float) -> None:
    messages = 0
    found = samples()
    for name, rows in found.items():
        half = rows[::2] if wave == "first" else rows[1::2]
        stage.producer(name, [{**row, "in": row["in"] / speed} for row in half])
        messages += len(half)
    picture.tell(f"{len(found)} producers enqueue {messages} messages")


def _kill(picture: _Picture, stage: DemoStage, victim: KeeperProcess, standby: KeeperProcess) -> float:
    killed = time.monotonic()
    kill(victim)
    picture.tell(f"kill -9 {victim.process.pid}: the keeper and its claims are gone")
    stage.await_keeper(standby)
    took_ms = (time.monotonic() - killed) * 1000
    picture.tell(f"process {standby.process.pid} took over after {took_ms:.0f} ms")
    return took_ms


class _Picture(Live):
    """The wheel as a ring of seconds."""

    def __init__(self, out: Output, wheel: Wheel, stage: DemoStage) -> None:
        super().__init__(out, rows=HEIGHT + 2, columns=72, events=_EVENTS)
        self._wheel = wheel
        self._stage = stage
        self._now_us = 0
        self._counts: list[int] = []
        self._late: list[float] = []
        self.pending = -1
        if self.is_live:
            out.write("Each slot is a second; its number is what is due then; the bracket is now.\n")

    def look(self) -> None:
        """Count what is due in each second, and read the keepers' files."""
        self._now_us = times.now_us() // US_PER_S * US_PER_S
        found = self._wheel.histogram([to_datetime(self._now_us + i * US_PER_S) for i in range(SLOTS + 1)])
        self._counts = [found.before + found.counts[0], *found.counts[1:]]
        self.pending = sum(self._counts) + found.after
        for keeper in self._stage.keepers:
            keeper.follow()
        self._late = sorted(late for keeper in self._stage.keepers for _, late in keeper.fired)

    @property
    def _median_ms(self) -> float:
        return self._late[len(self._late) // 2] if self._late else 0.0

    def picture(self) -> list[str]:
        """Return the ring, with the counts and the processes in its middle."""
        median = f"p50 {self._median_ms:.1f} ms late" if self._late else ""
        alive = [k for k in self._stage.keepers if k.process.poll() is None]
        who = [f"{role} {k.process.pid}" for role, k in zip(("keeper", "standby"), alive, strict=False)]
        hub = [f"{self.pending} pending", f"{len(self._late)} fired", median, "", *who, *[""] * (2 - len(who))]
        ring = draw(self._counts, self._now_us // US_PER_S % SLOTS, hub, self._style, blocks=self._out.blocks)
        return [*ring, ""]

    def line(self) -> str:
        """Return the counts."""
        median = f", half of them within {self._median_ms:.1f} ms" if self._late else ""
        return f"{self.pending} pending, {len(self._late)} fired{median}"

    def _style(self, text: str, role: str) -> str:
        colour, bold = _ROLES[role]
        return self._out.style(text, colour, bold=bold, dim=role == "empty")


def _report(out: Output, proof: Proof, producers: int, took_over_ms: float, damage: int) -> None:
    p50, p99, most = proof.percentile(0.5), proof.percentile(0.99), proof.percentile(1)
    if out.json:
        out.record(
            {
                "holds": proof.holds and not damage,
                "enqueued": proof.enqueued,
                "producers": producers,
                "fired": proof.fired,
                "missing": proof.missing,
                "unknown": proof.unknown,
                "early": proof.early,
                "twice": proof.twice,
                "take_over_ms": round(took_over_ms, 3),
                "late_ms": {"p50": p50, "p99": p99, "max": most},
                "damage": damage,
            }
        )
        return
    twice = f"{proof.twice}, claimed when the keeper was killed" if proof.twice else "none"
    rows = [
        ("enqueued", f"{proof.enqueued} messages by {producers} processes", bool(proof.enqueued)),
        ("fired", f"{proof.fired - len(proof.unknown)} of them, each at least once", not proof.missing),
        ("never fired", str(len(proof.missing) or "none"), not proof.missing),
        ("early", str(proof.early or "none"), not proof.early),
        ("fired twice", twice, True),
        ("late by", f"{p50:.1f} ms (p50), {p99:.1f} ms (p99), {most:.1f} ms (max)", True),
        ("taken over", f"{took_over_ms:.0f} ms after the kill", True),
        ("the wheel", f"{damage} places damaged" if damage else "verified, no damage", not damage),
    ]
    print_proof(out, "From the keepers' own records:", rows)
