"""The goals of the loop wheel, judged from a run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

MANY = 1_000_000


@dataclass(frozen=True)
class Goal:
    """A goal, and what was measured. `is_met` is None when the run has no figure for it."""

    what: str
    wanted: str
    measured: str
    is_met: bool | None


def goals(run: dict[str, Any]) -> list[Goal]:
    """Return the goals with what a run measured."""
    costs = {(cost["name"], cost["pending"]): cost for cost in run["costs"]}
    ours = costs.get(("LoopWheel", MANY))
    found = []
    for peer, pending, factor in (("asyncio", MANY, 3), ("uvloop", MANY, 3), ("threading.Timer", 100, 100)):
        other = costs.get((peer, pending))
        what = f"start + stop with a million pending, times as many a second as {peer}"
        if pending != MANY:
            what += f", whose thread ends, with {pending} pending"
        found.append(_ratio(what, factor, other, ours))
    few, most = costs.get(("LoopWheel", 10_000)), costs.get(("LoopWheel", 10 * MANY))
    what = "cost of a start with 10,000,000 pending, over that with 10,000"
    if few and most:
        growth = most["start_ns"] / few["start_ns"]
        found.append(Goal(what, "at most 1.5", f"{growth:.2f}", growth <= 1.5))
    else:
        found.append(Goal(what, "at most 1.5", "", None))
    return [*found, *_memory(run), *_life(run)]


def _ratio(what: str, factor: int, other: dict[str, Any] | None, ours: dict[str, Any] | None) -> Goal:
    if not other or not ours:
        return Goal(what, f"at least {factor}", "", None)
    ratio = other["pair_ns"] / ours["pair_ns"]
    measured = f"{ratio:.1f} ({ours['pair_ns']:,.0f} ns beside {other['pair_ns']:,.0f})"
    return Goal(what, f"at least {factor}", measured, ratio >= factor)


def _memory(run: dict[str, Any]) -> list[Goal]:
    what, wanted = "bytes of a pending timer, a million pending", "at most asyncio's"
    ours, other = (run["memory"].get(name, {}).get(str(MANY)) for name in ("LoopWheel", "asyncio"))
    if not ours or not other:
        return [Goal(what, wanted, "", None)]
    return [Goal(what, wanted, f"{ours:.0f} beside {other:.0f}", ours <= other)]


def _life(run: dict[str, Any]) -> list[Goal]:
    life = run.get("life", {}).get("LoopWheel")
    if not life or life["count"] < MANY:
        return [
            Goal("processor of an idle million", "at most 0.1 %", "", None),
            Goal("longest pause while a million expire in a second", "at most 50 ms", "", None),
        ]
    idle, pause = life["idle_share"] * 100, life["pause_s"] * 1000
    peer = run["life"].get("asyncio")
    beside = f" (asyncio {peer['pause_s'] * 1000:.0f} ms)" if peer else ""
    return [
        Goal("processor of an idle million", "at most 0.1 %", f"{idle:.3f} % of a core", idle <= 0.1),
        Goal(
            "longest pause while a million expire in a second", "at most 50 ms",
            f"{pause:.0f} ms{beside}; the last {life['late_s']:.1f} s late", pause <= 50,
        ),
    ]  # fmt: skip
