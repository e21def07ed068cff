"""Shortcuts in the protocol that look harmless. Each breaks it, and a schedule shows how."""

from __future__ import annotations

from enum import Enum


class Shortcut(Enum):
    """What a node does instead of the right thing."""

    MARKER_BEFORE_FENCE = "the marker is read before the predecessor is fenced"
    TWO_STEPS = "a marker has room for two steps; nothing is taken in while it has two"
    STANDBY_BY_ID = "a standby drops by the marker's id, whatever the offset"
    COLD_START_AT_COMMIT = "a new wheel starts where the last owner had read to, not at low"
    UNKNOWN_IS_ABORTED = "a commit without an answer is taken for one that failed"
    UNKNOWN_IS_COMMITTED = "a commit without an answer is taken for one that succeeded"
    POSITION_BEFORE_FLUSH = "the position is written before what lies below it is durable"
    POSITION_AFTER_FLUSH = "the position is the one after the flush, not the one before it"
    DROP_BEFORE_MARKER = "the wheel drops what went out before the marker is in the log"
    NO_FILTER = "what is read again is taken in without asking the marker"
    DONE_CANCELS_NOTHING = "a record that is done is skipped, with the cancellation that it is"
    CANCEL_IN_MEMORY = "a record that goes out is cancelled in memory, not in the wheel"
    LOW_IS_NO_FACT = "a pending record before the marker's low is kept"
    FIRES_BEFORE_END = "an owner fires before it has read to the end that the log had"
    FIRES_UNREAD = "an owner whose disk is full fires what its wheel had before, and it has not read again"
    REOPENS_WITHOUT_READING = "an owner that was fenced fires before it has read what its successor had"
    INGESTED_AFTER_CLAIM = "what was taken in is looked at after the claim, not with it"
    FIRES_WITHIN_THE_TICK = "what is due in the next moment goes out with what is due now"
    REPEATS_THE_STALE = "a fenced owner keeps its marker"
