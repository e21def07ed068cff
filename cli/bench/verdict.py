"""Interpret figures in words: the kind of disk, filewheel's share of its speed, the `sync` to choose.

Pure: figures in, sentences out. All judgement is here, with its limits as constants.
Invariants: it recommends sync=always wherever a flush protects anything; each sentence agrees with the figures.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from filewheel.tools import NETWORK_TYPES

from .figures import Figures
from .rounds import THREADS

# No durable medium is faster: a volatile cache confirmed the write.
UNLIKELY_US = 20
PROTECTED_US = 100
FAST_US = 1000
SLOW_US = 5000

CLOSE = 0.9
NEAR = 0.7
_TAIL = 10
_LITTLE = 1.5
"""A gain below this is no reason to give anything up."""
_LATE_MS = 20.0

MEMORY_TYPES = frozenset({"tmpfs", "ramfs", "hugetlbfs"})

DISKS = {
    "memory": "That is memory, not a disk: a flush does nothing, and all of it is gone with the next reboot.",
    "network": "That is a network file system, where neither locks nor flushes can be trusted.",
    "unlikely": "That is less than a disk needs for a durable write: a volatile cache may confirm it.",
    "protected": "That looks like an SSD with power-loss protection, or a cache with a battery.",
    "fast": "That looks like a fast SSD, or a virtual disk on one.",
    "ordinary": "That looks like an ordinary SSD that really empties its cache.",
    "slow": "That looks like a spinning disk, a network volume, or a disk that others keep busy.",
}


@dataclass(frozen=True)
class Verdict:
    """The judgement: a key for scripts, sentences for people."""

    disk: str
    """One of DISKS."""
    flush: str
    filewheel: str
    choices: dict[str, str]
    """For each `sync`, its benefit and its risk."""
    sync: str
    """The recommended `sync`."""
    recommendation: str
    firing: str
    warnings: list[str] = field(default_factory=list)


def judge(figures: Figures, file_system: str) -> Verdict:
    """Interpret the figures."""
    disk = disk_of(figures.flush_us, file_system)
    sync, recommendation = _recommend(figures, disk)
    return Verdict(
        disk=disk,
        flush=f"A flush costs {duration(figures.flush_us)} here{_on(file_system)}. {DISKS[disk]}",
        filewheel=_closeness(figures),
        choices=_choices(figures, disk),
        sync=sync,
        recommendation=recommendation,
        firing=_firing(figures),
        warnings=_warnings(figures, disk),
    )


def disk_of(flush_us: float, file_system: str) -> str:
    """Return the probable kind of disk: a key of DISKS."""
    if file_system in MEMORY_TYPES:
        return "memory"
    if file_system in NETWORK_TYPES:
        return "network"
    if flush_us < UNLIKELY_US:
        return "unlikely"
    if flush_us < PROTECTED_US:
        return "protected"
    if flush_us < FAST_US:
        return "fast"
    return "ordinary" if flush_us <= SLOW_US else "slow"


# -- sentences --------------------------------------------------------------------------------------------------------


def _on(file_system: str) -> str:
    return f" ({file_system})" if file_system else ""


def _closeness(f: Figures) -> str:
    # From the share alone: the rates are separate medians, and their ratio may differ.
    own = duration(max(0.0, 1 - f.share) * 1e6 / f.one_per_s)
    if f.share >= 1:
        return "One thread enqueues as fast as it makes the bare system calls: the disk is the limit, not filewheel."
    share = f"One thread enqueues {f.share:.0%} as fast as it makes the bare system calls"
    if f.share >= CLOSE:
        return f"{share}: the disk is the limit, not filewheel."
    if f.flush_us < PROTECTED_US:
        return f"{share}: the flush is so cheap that filewheel's own work counts, {own} a message."
    if f.share >= NEAR:
        return f"{share}: most of the time goes to the disk, {own} a message to filewheel."
    return f"{share}: less than it should be with such a flush. Is the machine busy? Measure again, and longer."


def _choices(f: Figures, disk: str) -> dict[str, str]:
    threads = f"{rate(f.threads_per_s)} from {THREADS} threads"
    if f.threads_per_s < f.one_per_s:
        threads += " (they would share flushes, but those cost too little)"
    always = (
        f"{rate(f.one_per_s)} from one thread, {threads}, {rate(f.batch_100_per_s)} in batches of 100, "
        f"{rate(f.batch_1000_per_s)} in batches of 1,000."
    )
    interval = f"{rate(f.interval_per_s)} from one thread, {gain(f.interval_per_s, f.one_per_s)}."
    never = f"{rate(f.never_per_s)} from one thread, {gain(f.never_per_s, f.one_per_s)}."
    losses = _losses(disk)
    return {name: f"{text} {losses[name]}" for name, text in (("always", always), ("0.05", interval), ("never", never))}


def _losses(disk: str) -> dict[str, str]:
    """Return the possible loss for each `sync` on this kind of disk."""
    if disk == "memory":
        return dict.fromkeys(
            ("always", "0.05", "never"), "A power cut takes everything; the crash of a process nothing."
        )
    truth = {
        "network": " if the server tells the truth",
        "unlikely": " only if the disk tells the truth",
    }.get(disk, "")
    return {
        "always": f"A message whose enqueue returned survives a power cut{truth}.",
        "0.05": "A power cut takes up to 50 ms of messages; the crash of a process none.",
        "never": (
            "A power cut takes the messages that the system had not written yet, often half a minute of them; the "
            "crash of a process none."
        ),
    }


def _recommend(f: Figures, disk: str) -> tuple[str, str]:
    if disk == "memory":
        return "never", (
            "Take sync=never if these messages may go with the machine: nothing here outlives it, and a flush buys "
            "nothing. If they may not, put the wheel on a disk, and measure there."
        )
    if disk == "network":
        return "always", "Put the wheel on a local disk. If it must be here, keep sync=always, and one machine only."
    cost = f"our flush costs {duration(f.flush_us)}"
    if disk == "unlikely":
        return "always", (
            f"Keep sync=always: y{cost}, so there is little to gain without it. But find out what confirms it before "
            "you trust it with a power cut."
        )
    text = f"Y{cost}: keep sync=always. If one thread needs more than {rate(f.one_per_s)}, enqueue {_ways(f)}."
    if f.interval_per_s < _LITTLE * f.one_per_s:
        return "always", f"{text} sync=0.05 would gain next to nothing."
    return "always", (
        f"{text} Only if that is not possible, and the last 50 ms may be lost in a power cut: sync=0.05 for "
        f"{rate(f.interval_per_s)}."
    )


def _ways(f: Figures) -> str:
    """Return ways to be faster at full durability, with their rates; threads only if they help."""
    batches = f"in batches of 100 for {rate(f.batch_100_per_s)}"
    if f.threads_per_s < _LITTLE * f.one_per_s:
        return batches
    return f"{batches}, or from {THREADS} threads for {rate(f.threads_per_s)}"


def _firing(f: Figures) -> str:
    backlog = duration(1e6 * 1e6 / f.fire_per_s)
    return (
        f"Due messages fire {duration(max(0.0, f.late_p50_ms) * 1000)} late in the median, "
        f"{duration(max(0.0, f.late_p99_ms) * 1000)} at the 99th percentile. "
        f"A million messages that piled up fire in {backlog}."
    )


def _warnings(f: Figures, disk: str) -> list[str]:
    found = []
    if disk == "unlikely":
        found.append(
            "No medium confirms a write so fast. It is a cache without a battery, a file system without barriers, a "
            "virtual machine that ignores flushes, or memory. Messages survive the crash of a process in any case, a "
            "power cut only if the disk tells the truth."
        )
    elif disk == "slow":
        found.append(
            f"More than {SLOW_US // 1000} ms for a flush is much. If this is an SSD, something else keeps it busy."
        )
    if f.flush_p99_us > _TAIL * f.flush_us and f.flush_p99_us > SLOW_US:
        found.append(
            f"One flush in a hundred takes {duration(f.flush_p99_us)} or more: something else writes here, or the disk "
            "pauses. An enqueue waits as long."
        )
    if f.late_p99_ms > _LATE_MS:
        found.append(f"One message in a hundred fires {duration(f.late_p99_ms * 1000)} late or more: a busy machine.")
    if f.early:
        found.append(f"{f.early} messages fired early. Was the clock set? If not, please report it.")
    return found


# -- quantities -------------------------------------------------------------------------------------------------------


def rate(per_s: float) -> str:
    """Write a rate with its significant digits: "4,100/s", "85/s", "1.5/s"."""
    if per_s < 10:
        return f"{per_s:.1f}/s"
    digits = len(f"{per_s:.0f}")
    return f"{round(per_s, min(0, 2 - digits)):,.0f}/s"


def duration(us: float) -> str:
    """Write a length of time with two digits: "0.8 µs", "240 µs", "1.3 ms", "2.6 s"."""
    for limit, divisor, unit in ((999.5, 1, "µs"), (999_500, 1000, "ms")):
        if us < limit:
            return f"{_two_digits(us / divisor)} {unit}"
    return f"{_two_digits(us / 1e6)} s"


def _two_digits(value: float) -> str:
    if value < 9.95:
        return f"{value:.1f}"
    return f"{round(value, -1):.0f}" if value >= 99.5 else f"{value:.0f}"


def gain(per_s: float, base_per_s: float) -> str:
    """Compare a rate with another: "50 times as fast", "no faster"."""
    times = per_s / base_per_s
    if times < 1.1:
        return "no faster"
    return f"{times:.1f} times as fast" if times < 9.95 else f"{times:.0f} times as fast"
