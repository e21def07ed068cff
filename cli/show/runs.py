"""Runs and their ends, in words."""

from __future__ import annotations

from filewheel import Damaged, Ended, Message, Run, Running, Wheel
from filewheel.live.run_fields import ended_fields as ended_fields
from filewheel.live.run_fields import state_fields as state_fields

from .. import times
from .output import Output
from .text import away, span


def running_of(out: Output, wheel: Wheel) -> Running:
    """Return what runs. A list that cannot be read, or is old, is a warning: the table of begins says what runs."""
    try:
        running = wheel.running()
    except Damaged as exc:
        out.warn(f"since when and where messages run is not known: {exc}")
        return Running()
    now_us = times.now_us()
    if running.is_stale(now_us):
        out.warn(f"the keeper has written what runs {away(-running.age_us(now_us))}: it is stuck, or stopped")
    return running


def state_words(message: Message, running: Running, now_us: int) -> str:
    """Return the state of a pending message in a few words: "runs 12s, try 2"."""
    state = running.pending_state(message.id)
    if state != "running":
        return state if message.waits is None else "waits"
    run = running.find(message.id)
    since = "" if run is None or run.begun_us is None else f" {span(max(0, now_us - run.begun_us))}"
    attempt = f", try {message.attempt + 1}" if message.attempt else ""
    return f"runs{since}{attempt}"


def overview_words(running: Running, now_us: int) -> str:
    """Return how many messages run, and the longest of them: "3, the first for 12m in thread filewheel-1"."""
    first = running[0]
    longest = f", the first {run_words(first, now_us).removeprefix('runs ')}" if first.begun_us is not None else ""
    more = running.claimed - running.begun
    return f"{running.begun:,}{longest}" + (f"; {more:,} more {'is' if more == 1 else 'are'} claimed" if more else "")


def run_words(run: Run, now_us: int) -> str:
    """Return since when and where a message runs: "runs for 12s in thread filewheel-1"."""
    if run.begun_us is None:
        return "claimed, and has not begun"
    return f"runs for {span(max(0, now_us - run.begun_us))} in {run.place}"


def ended_words(ended: Ended, now_us: int) -> str:
    """Return how an attempt ended: "acked 3s ago, after 0.2s"."""
    took = "" if ended.took_us is None else f", after {span(ended.took_us)}"
    error = f": {ended.error}" if ended.error else ""
    return f"{ended.outcome} {away(ended.ended_us - now_us)}{took}{error}"
