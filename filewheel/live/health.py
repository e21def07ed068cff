"""Whether a message that comes due now would fire in time: one rule for the command line, the web page and a program.

It answers from the wheel's files and locks, so it works beside a keeper in another container. It takes no lock and
writes nothing. A pause is what somebody wants, so it is reported and is no failure.
Invariant: what cannot be read is no success: its check fails, or the error is raised. A keeper that gives no signs of
life, as one that is just opening the wheel, is known by its lock only, and the answer says so.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

from filewheel.checks import check_flag, check_number, check_whole
from filewheel.disk.begun import GENERATION_BYTES, SLOT_BYTES, read_table
from filewheel.disk.directory import Directory, open_directory
from filewheel.disk.disk import FILES_MIN, SYSTEM
from filewheel.disk.keeper_lock import Holder, holder
from filewheel.disk.paused import read_pauses
from filewheel.env import Env
from filewheel.errors import Damaged, FilewheelError, disk_errors
from filewheel.format.pauses import PausedMessages, Pauses
from filewheel.format.record import ID, unpack_put
from filewheel.live.backups import trouble_of
from filewheel.lookup.snapshot import DEAD_FLOOR, Snapshot
from filewheel.message import ID_END, ID_MIN, US_PER_S, WAITS, MessageId, due_of, id_floor
from filewheel.roster.roster import Roster, read_roster
from filewheel.schedules.occurrences import WAIT_US
from filewheel.sets.lag import missing_files
from filewheel.tools.dump import iso

MAX_LAG_S = 60.0
MIN_FREE_BYTES = 16 << 20
"""Below this a keeper has no room to deal, and soon producers have none to enqueue."""
_WAITS = WAITS.encode()
_Late = tuple[int, str]
"""When a message was due, and its id, with the reason if it cannot begin."""
_PATIENCE_US = 15 * US_PER_S
"""A keeper that came around within this time is alive, whatever the limit: it says so every five seconds."""


@dataclass(frozen=True, slots=True)
class Check:
    """One question, and its answer."""

    name: str
    """"role", "files", "paused", "keeper", "alive", "lag", "room", "backups", "dead"."""
    kind: str
    """The empty string when all is well; else the kind of trouble: "fenced", "damaged", "no-keeper", "stuck", "late",
    "nearly-full", "backups", "dead"."""
    text: str
    """The answer, for people."""

    @property
    def is_ok(self) -> bool:
        """Whether all is well."""
        return not self.kind


@dataclass(frozen=True, slots=True)
class Health:
    """The answers of one moment, the worst trouble first among those that fail."""

    path: str
    at_us: int
    lag_us: int
    """How long the first due message has waited that has not begun; 0 when none waits."""
    checks: tuple[Check, ...]

    @property
    def is_healthy(self) -> bool:
        """Whether a message that comes due now would fire in time, as far as this is checked."""
        return all(check.is_ok for check in self.checks)

    @property
    def failed(self) -> tuple[Check, ...]:
        """The checks that fail; the first one names the kind of trouble."""
        return tuple(check for check in self.checks if not check.is_ok)

    def fields(self) -> dict[str, Any]:
        """Return it as JSON fields."""
        failed = self.failed
        return {
            "wheel": self.path,
            "at": iso(self.at_us),
            "healthy": not failed,
            "kind": failed[0].kind if failed else None,
            "lag_s": self.lag_us / US_PER_S,
            "checks": [{"name": c.name, "ok": c.is_ok, "kind": c.kind or None, "text": c.text} for c in self.checks],
        }


def check_health(
    path: str | os.PathLike[str],
    *,
    max_lag_s: float = MAX_LAG_S,
    min_free_bytes: int = MIN_FREE_BYTES,
    needs_keeper: bool = True,
    backups: bool = False,
    max_dead: int | None = None,
    force: bool = False,
    env: Env = SYSTEM,
) -> Health:
    """Check whether a message that comes due now would fire in time.

    It would not when the wheel is a backup or was fenced, files are missing, no keeper runs, the keeper is stuck, a
    due message has waited for more than `max_lag_s` and has not begun, or the disk has less than `min_free_bytes`, or
    hardly any inodes. A keeper is stuck when it was stopped, or has not come around for `max_lag_s` (15 seconds at
    least). Without `needs_keeper` a timer fires, and only the wait counts. With `backups` each one must be current and
    followed, and with `max_dead` there may be at most so many dead letters; in a backup they are not counted.

    Cost: a stat of each slot and lap file, and the undealt journals: under a millisecond for an empty wheel, 0.2 s of
    processor for a million messages over a year, which have 33,000 files. `max_dead` reads one more dead letter than
    that. Raises NoWheel, Unsafe,
    NewerFormat, Damaged, DiskError: then nothing is known.
    """
    max_lag_us = int(check_number("max_lag_s", max_lag_s, least=0) * US_PER_S)
    check_whole("min_free_bytes", min_free_bytes, least=0)
    check_flag("needs_keeper", needs_keeper)
    check_flag("backups", backups)
    if max_dead is not None:
        check_whole("max_dead", max_dead, least=0)
    directory = open_directory(path, write=False, force=force, env=env)
    try:
        with disk_errors(directory.path):
            roster = read_roster(directory.disk, directory.path)
            checks = [_role(directory, roster)]
            lag_us, dead = 0, None
            if checks[0].is_ok:
                pauses, paused = _paused(directory)
                waits, dead, files = _waiting(directory, pauses, max_dead)
                now_us = env.clock.now_us()  # after the look: what has fired since then is not waiting
                lag_us = max(0, now_us - waits[0]) if waits is not None else 0
                checks += [files, paused, *_keeper(directory, max_lag_us, needs_keeper=needs_keeper)]
                checks.append(_lag(waits, lag_us, max_lag_us))
            checks.append(_room(directory, min_free_bytes))
        if backups:
            checks.append(_backups(directory, roster, env))
        if max_dead is not None and dead is not None:
            checks.append(_dead(dead, max_dead))
        return Health(directory.path, env.clock.now_us(), lag_us, tuple(checks))
    finally:
        directory.disk.release()


def _role(directory: Directory, roster: Roster | None) -> Check:
    """Check whether this wheel may fire: it stands alone, or is the primary that was promoted last."""
    if roster is None or (roster.role == "primary" and not roster.members):
        return Check("role", "", "it has no backups" if roster is None else "the primary, without backups now")
    if roster.role != "primary":
        return Check(
            "role", "fenced", f"it fires nothing: it is {_ROLES.get(roster.role, roster.role)} of {roster.primary}"
        )
    from filewheel.sets.status import find_primary  # loaded only where there is a set

    path, theirs = find_primary(directory.path, directory.env)
    if theirs.epoch > roster.epoch:
        return Check("role", "fenced", f"it fires nothing more: {path} was promoted in its place")
    return Check("role", "", f"the primary, epoch {roster.epoch}")


_ROLES = {"backup": "a backup", "fenced": "a fenced wheel of the set", "promoting": "in a promotion, in the place"}


def _paused(directory: Directory) -> tuple[Pauses, Check]:
    """Return what is paused, which is no failure, and whether that is known: without it no keeper starts."""
    try:
        pauses = read_pauses(directory.disk, directory.path)
    except Damaged as exc:
        return Pauses(), Check("paused", "damaged", f"{exc.what}: no keeper can start")
    return pauses, Check("paused", "", f"paused, and not judged: {pauses}" if pauses.entries else "nothing is")


def _waiting(directory: Directory, pauses: Pauses, max_dead: int | None) -> tuple[_Late | None, int | None, Check]:
    """Return the first due message that has not begun and is not paused, how many dead letters there are, and whether
    all files can be read that were needed. Dead letters are counted to one more than `max_dead`.

    One that the keeper deferred because it cannot begin it has been due since then.
    """
    held = PausedMessages(pauses)
    begun = frozenset(_begun(directory))
    missing = missing_files(directory)
    late: list[_Late] = []
    with Snapshot(directory) as snapshot:
        now = id_floor(max(0, directory.env.clock.now_us()))
        for put in snapshot.puts(ID_MIN, now):
            if put[ID] not in begun and not held.holds(put):
                late.append((due_of(put[ID]), str(MessageId(put[ID]))))
                break
        for put in snapshot.puts(now, id_floor(due_of(now) + WAIT_US)):
            if _WAITS in put and not held.holds(put):
                message = unpack_put(put)
                if message.waits_since_us is not None:
                    late.append((message.waits_since_us, f"{message.id}: {message.waits}"))
        dead = None
        if max_dead is not None:
            dead = sum(1 for _ in islice(snapshot.puts(DEAD_FLOOR, ID_END), max_dead + 1))
        names = dict.fromkeys([*missing, *(damage.name for damage in snapshot.problems())])
    first = min(late, default=None)
    if not names:
        return first, dead, Check("files", "", "no file is missing or damaged, as far as was read")
    some = ", ".join([*names][:3]) + (", …" if len(names) > 3 else "")
    return first, dead, Check("files", "damaged", f"{_count(len(names), 'file')} missing or damaged: {some}")


def _begun(directory: Directory) -> Iterator[bytes]:
    """Yield the ids that the present keeper has begun, and some that it has settled since."""
    table = read_table(directory.disk)[GENERATION_BYTES:]
    for at in range(0, len(table) - SLOT_BYTES + 1, SLOT_BYTES):
        yield table[at : at + SLOT_BYTES]


def _keeper(directory: Directory, max_lag_us: int, *, needs_keeper: bool) -> list[Check]:
    """Check whether a keeper runs, and whether it is alive."""
    found = holder(directory)
    if found is None:
        text = "no keeper runs, so nothing fires"
        return [Check("keeper", "no-keeper" if needs_keeper else "", text if needs_keeper else "none runs now")]
    return [Check("keeper", "", f"{found}"), _alive(directory, found, max(max_lag_us, _PATIENCE_US))]


def _alive(directory: Directory, found: Holder, patience_us: int) -> Check:
    now_us = directory.env.clock.now_us()
    if found.is_stopped:
        return Check("alive", "stuck", f"{found} was stopped (SIGSTOP, or a debugger): `kill -CONT` continues it")
    if found.beat_us is None:
        return Check(
            "alive", "", "not known: the keeper gives no signs of life; it is an older version, or just starts"
        )
    silent_us = abs(now_us - found.beat_us)
    if silent_us > patience_us:
        return Check(
            "alive", "stuck", f"{found} has not come around for {_span(silent_us)}: it hangs, or its disk does"
        )
    idle_us = now_us - (found.beat_us if found.asked_us is None else found.asked_us)
    if idle_us > patience_us and not _is_busy(directory):
        return Check(
            "alive", "stuck", f"{found} has nothing in hand and has not asked for messages for {_span(idle_us)}"
        )
    return Check("alive", "", f"it came around {_span(silent_us)} ago")


def _is_busy(directory: Directory) -> bool:
    """Return whether the keeper has begun messages that are not settled: then its consumer may well work on them."""
    ids = [MessageId(id_) for id_ in _begun(directory) if any(id_)]
    with Snapshot(directory) as snapshot:
        return bool(snapshot.find(ids))


def _lag(waits: _Late | None, lag_us: int, max_lag_us: int) -> Check:
    if waits is None:
        return Check("lag", "", "no due message waits")
    text = f"the first due message has waited for {_span(lag_us)}"
    if lag_us > max_lag_us:
        return Check("lag", "late", f"{text}: {waits[1]}")
    return Check("lag", "", text)


def _room(directory: Directory, min_free_bytes: int) -> Check:
    free, files = directory.disk.free_bytes(), directory.disk.free_files()
    if files is not None and files < FILES_MIN:
        return Check("room", "nearly-full", f"only {files} more files can be made on its disk: the inodes are used up")
    text = f"{free / (1 << 20):,.0f} MiB are free on its disk"
    if free < min_free_bytes:
        return Check("room", "nearly-full", text)
    return Check("room", "", text)


def _dead(dead: int, max_dead: int) -> Check:
    """Check that messages do not die unseen."""
    if dead > max_dead:
        return Check(
            "dead", "dead", f"more than {_count(max_dead, 'dead letter')}" if max_dead else "a message has died"
        )
    return Check("dead", "", _count(dead, "dead letter") if dead else "no dead letter")


def _backups(directory: Directory, roster: Roster | None, env: Env) -> Check:
    """Check each backup of the set, by the rule of `filewheel backup list`."""
    from filewheel.sets.status import set_status

    try:
        status = None if roster is None else set_status(directory.path, env=env)
    except FilewheelError as exc:
        return Check("backups", "backups", f"nothing is known of them: {exc}")
    if status is None:
        return Check("backups", "backups", "it has none")
    if status.primary_why:
        return Check("backups", "backups", f"{status.primary} cannot be read: {status.primary_why}")
    troubles = {one.member.path: trouble_of(one) for one in status.members}
    bad = [f"{path}: {why}" for path, why in troubles.items() if why]
    return Check("backups", "backups" if bad else "", "; ".join(bad) or f"{_count(len(troubles), 'backup')} in step")


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _span(us: int) -> str:
    seconds = us / US_PER_S
    if seconds < 120:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.0f} h"
