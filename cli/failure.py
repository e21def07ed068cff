"""The exit codes, and the code of each library error.

The codes are a public API for scripts (`filewheel --help` and docs/cli.md list them). A code that is not listed means
failure.
Invariant: every error class of the library has a code, and every failure a kind, a code and a message.
"""

from __future__ import annotations

import errno
import os
import re
import shlex

import click

from filewheel import FilewheelError, KeyHeld, TooLarge
from filewheel.message import schedule_of_key

from .show.text import count

FAILED = 1
USAGE = 2
PARTLY = 3
NOT_FOUND = 4
KEY_HELD = 5
TOO_FEW_COPIES = 6
BEGUN = 7
NO_WHEEL = 10
LOCKED = 11
DAMAGED = 12
NEWER = 13
FENCED = 14
UNKILLABLE = 15
TIMED_OUT = 16
UNDONE = 17
NO_KEEPER = 20
STUCK = 21
LATE = 22
FULL = 23
BACKUPS = 24
DEAD = 25
INTERRUPTED = 130

MEANING = {
    0: "done",
    FAILED: "failed (also when the reader of a pipe has gone)",
    USAGE: "usage: the command line or its input is wrong; nothing was done",
    PARTLY: "partly done: some ids unknown, some lines or messages failed",
    NOT_FOUND: "not found: no such message",
    KEY_HELD: "key held: another living message has this key; nothing was enqueued",
    TOO_FEW_COPIES: "too few copies: the message is not confirmed, and may fire",
    BEGUN: "begun: a cancelled message had begun, or may have; it goes on",
    NO_WHEEL: "no wheel there",
    LOCKED: "locked: another process is the keeper, or is busy with the key",
    DAMAGED: "damaged: try `filewheel verify`, then `filewheel repair`",
    NEWER: "written by a newer filewheel",
    FENCED: "fenced: this wheel is a backup, or another one was promoted",
    UNKILLABLE: "it runs in a thread or in a program, which nothing can end from outside",
    TIMED_OUT: "the time was up before it ended",
    UNDONE: "undone: the wheel was resumed while it was drained",
    NO_KEEPER: "no keeper runs (health, kill)",
    STUCK: "health: the keeper does not come around",
    LATE: "health: a due message has waited too long",
    FULL: "health: the disk is nearly full",
    BACKUPS: "health: a backup is not in step",
    DEAD: "health: too many messages have died",
    INTERRUPTED: "interrupted",
}

_CODES = {
    "usage": USAGE,
    "partly": PARTLY,
    "not-found": NOT_FOUND,
    "key-held": KEY_HELD,
    "too-few-copies": TOO_FEW_COPIES,
    "begun": BEGUN,
    "no-wheel": NO_WHEEL,
    "locked": LOCKED,
    "damaged": DAMAGED,
    "newer-format": NEWER,
    "fenced": FENCED,
    "no-keeper": NO_KEEPER,
    "stuck": STUCK,
    "late": LATE,
    "nearly-full": FULL,
    "backups": BACKUPS,
    "dead": DEAD,
    "unkillable": UNKILLABLE,
    "timed-out": TIMED_OUT,
    "undone": UNDONE,
    "interrupted": INTERRUPTED,
}


class Failure(click.ClickException):
    """A command did not succeed; the message is one line."""

    def __init__(self, kind: str, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.kind = kind
        self.hint = hint
        self.code = _CODES.get(kind, FAILED)


def check_damage(places: int) -> None:
    """Raise the failure of `verify` if places are damaged. Call it last, after the data is printed."""
    if places:
        raise Failure(
            "damaged", f"{count(places, 'place is', 'places are')} damaged", hint="`filewheel verify` names each"
        )


def failure_of(exc: BaseException) -> Failure:
    """Turn an exception of a command into a failure."""
    if isinstance(exc, Failure):
        return exc
    if isinstance(exc, FilewheelError):
        place = f"{exc.path}: " if exc.path else ""
        at = f" at offset {exc.offset}" if exc.offset is not None else ""
        return Failure(exc.kind, f"{place}{exc.what}{at}", hint=_shell_hint(exc))
    if isinstance(exc, click.UsageError):
        path = exc.ctx.command_path if exc.ctx is not None else "filewheel"
        said = " ".join(exc.format_message().split())  # click prints one choice per line
        return Failure("usage", said, hint=_extra_word(exc, said) or f"`{path} --help`")
    if isinstance(exc, click.ClickException):
        return Failure("failed", exc.format_message())
    if isinstance(exc, (click.Abort, KeyboardInterrupt)):
        return Failure("interrupted", "interrupted")
    if isinstance(exc, OSError):
        return _of_os_error(exc)
    if isinstance(exc, RecursionError):
        return Failure("usage", "the input is nested too deeply")
    if isinstance(exc, MemoryError):
        return Failure("failed", "out of memory", hint="raise `ulimit -v`, or the container's limit")
    if isinstance(exc, RuntimeError) and "start new thread" in str(exc):
        return Failure("failed", "no thread can be started", hint="raise `ulimit -u`, or the container's task limit")
    raise exc


def _shell_hint(exc: FilewheelError) -> str | None:
    """Return an error's hint, with options in place of Python arguments."""
    if isinstance(exc, KeyHeld) and schedule_of_key(exc.key) is None and "on_conflict" in (exc.hint or ""):
        return "cancel it, wait until it is done, or use --on-conflict keep or replace"
    if isinstance(exc, TooLarge) and "payload_bytes_max" in (exc.hint or ""):
        return "store it elsewhere and enqueue its name, or make a wheel with a larger `init --payload-max`"
    return exc.hint


_EXTRA = re.compile(r"Got unexpected extra arguments? \((\S+).*\)")
_UNIT_WORDS = re.compile(r"(milli)?(second|minute|hour|day|week)s?|sec|min|hr", re.IGNORECASE)
_UNITS = ("us", "ms", "s", "m", "h", "d", "w")


def is_unit(word: str | None) -> bool:
    """Return whether a word is the unit of a duration, as in `--in 5 m`."""
    return word is not None and (word in _UNITS or _UNIT_WORDS.fullmatch(word) is not None)


def _extra_word(exc: click.UsageError, said: str) -> str | None:
    """Return a hint for an unexpected argument or option."""
    if isinstance(exc, click.NoSuchOption) and exc.option_name == "--in" and _takes(exc, "--at"):
        return "--at 'in 2 hours'"
    found = _EXTRA.fullmatch(said)
    if found is None or exc.ctx is None:
        return None
    if is_unit(exc.ctx.params.get("body")) or is_unit(found[1]):
        return "write a duration as one word: 5m, 1h30m"
    if exc.ctx.info_name != "completion" and os.path.isdir(found[1]):
        return f"`filewheel -C {shlex.quote(found[1])} {exc.ctx.info_name}`, if that is the wheel"
    return None


def _takes(exc: click.UsageError, option: str) -> bool:
    return exc.ctx is not None and any(option in param.opts for param in exc.ctx.command.params)


def _of_os_error(exc: OSError) -> Failure:
    place = f"{exc.filename}: " if exc.filename else ""
    if exc.errno == errno.ENOENT and exc.filename:
        return Failure("failed", f"{place}no such file or directory")
    return Failure("failed", f"{place}{(exc.strerror or str(exc) or type(exc).__name__).lower()}")
