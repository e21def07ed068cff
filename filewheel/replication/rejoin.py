"""Rejoining: a wheel that was fenced becomes a backup of the primary that took its place.

What only it has was enqueued there and never copied: it goes to the new primary. What waits in it and not in the new
primary may also have been fired there since; the drops that the new primary wrote since its promotion, which it keeps
for this very purpose, tell the two apart. What the old one fired, and could not say, is dropped in the new one. Both
are sets, so doing it twice, or half, changes nothing more. Then a replicator makes the old wheel equal to the new one.
Invariant: no message that was only here is dropped before it is durable in the new primary.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from filewheel import layout, unique
from filewheel.clock import SYSTEM_CLOCK, Clock
from filewheel.directory import Directory, DiskFactory, open_directory
from filewheel.disk import OsDisk
from filewheel.errors import BadArgument, Damaged, Fenced, KeyHeld
from filewheel.frame import Frame, scan
from filewheel.headers import REASON
from filewheel.journal import Journal
from filewheel.keys import Keys, key_of
from filewheel.message import DEAD_US, ID_END, ID_MIN, US_PER_S, Message
from filewheel.owner import Owner
from filewheel.record import ACKED, CANCELLED, ID, pack_drop, pack_message, records_of, unpack_put
from filewheel.replication.bundle import Bundle
from filewheel.replication.chunk import compare, pending
from filewheel.replication.replicator import find_primary
from filewheel.replication.sources import SourceHandles, list_segments
from filewheel.retained import Retained
from filewheel.roster import Member, Roster, change_roster, read_roster
from filewheel.snapshot import Snapshot
from filewheel.standing import LOOK_US
from filewheel.writer import Entropy

log = logging.getLogger(__name__)

_BATCH = 10_000
FENCE_S = LOOK_US / US_PER_S * 1.25
"""How long a producer may go on that has not looked yet."""

Progress = Callable[[str, int, int], None]


@dataclass
class Rejoin:
    """What a rejoin did."""

    primary: str
    kept: int = 0
    """Messages that only the old wheel had, and that are in the new primary now."""
    dropped: int = 0
    """Messages that the old wheel had fired, and the new primary did not know of."""
    notes: list[str] = field(default_factory=list)


def rejoin(
    path: str | os.PathLike[str],
    *,
    force: bool = False,
    clock: Clock = SYSTEM_CLOCK,
    disk: DiskFactory = OsDisk,
    entropy: Entropy = secrets.token_bytes,
    progress: Progress | None = None,
) -> Rejoin:
    """Make a fenced wheel a backup of the new primary, which first gets what only the old one has.

    On return it is registered as a backup that is joining; a replicator brings it in step. `force` also takes a wheel
    that is a backup already. Cost: a walk over both wheels, and over the journals that the new primary has retained.

    Raises BadArgument when the wheel was not fenced, NoWheel when the new primary cannot be seen, Locked while its
    keeper runs.
    """
    where = os.path.abspath(os.fspath(path))
    with _opened(where, disk) as old:
        mine = read_roster(old.disk, where)
        if mine is None:
            raise BadArgument(f"{where} is in no set of wheels", hint="`filewheel backup add`")
        primary, theirs = find_primary(where, disk)
        if theirs.primary_wheel == old.settings.id:
            raise BadArgument(f"{where} is the primary", hint="promote another wheel first")
        member = theirs.member(old.settings.id)
        # Cut short between the two rosters it says so already, and the new primary does not.
        is_registered = member is not None and member.state != "fenced"
        if mine.role == "backup" and is_registered and not force:
            raise BadArgument(f"{where} is a backup already", hint="`filewheel replicate` keeps it in step")
        owner = Owner(old)
        owner.take("rejoin", wait=False)
        try:
            with _opened(primary, disk) as new:
                _fence(old, theirs)
                result = Rejoin(primary)
                act = _Rejoining(old, new, member, clock, entropy, progress, result)
                act.run()
                _register(old, new, mine, member, clock)
        finally:
            owner.release()
    return result


def _fence(old: Directory, theirs: Roster) -> None:
    """Have nobody write to the old wheel any more, and wait until its producers have seen that."""

    def fence(mine: Roster | None) -> Roster | None:
        if mine is None or mine.role not in ("primary", "promoting"):
            return mine
        return replace(
            mine, role="fenced", epoch=theirs.epoch, primary=theirs.primary, primary_wheel=theirs.primary_wheel
        )

    change_roster(old, fence)
    threading.Event().wait(FENCE_S)


def _register(old: Directory, new: Directory, mine: Roster, member: Member | None, clock: Clock) -> None:
    """Write into both rosters that the old wheel is a backup now: into its own first, so that it never fires again."""
    mode = member.mode if member is not None else "ship"
    back = Member(old.path, old.settings.id, mode, "joining", clock.now_us())

    def join(roster: Roster | None) -> Roster:
        if roster is None or roster.role != "primary" or roster.set != mine.set:
            raise Fenced("this wheel is not the primary any more", path=new.path, hint="`filewheel rejoin` again")
        return roster.with_member(back)

    joined = join(read_roster(new.disk, new.path))
    # A crash between the two leaves a backup that the new primary takes for a fenced wheel: it is kept as one.
    change_roster(old, lambda _: replace(joined, role="backup"))
    change_roster(new, join)


class _Rejoining:
    def __init__(
        self,
        old: Directory,
        new: Directory,
        member: Member | None,
        clock: Clock,
        entropy: Entropy,
        progress: Progress | None,
        result: Rejoin,
    ) -> None:
        self._old = old
        self._new = new
        self._member = member
        self._clock = clock
        self._progress = progress
        self._result = result
        self._journal = Journal(new, entropy=entropy)
        self._keys = Keys(new)

    def run(self) -> None:
        """Carry over what differs. On return it is durable in the new primary."""
        with contextlib.closing(self._journal):
            only_old = self._only_in_old()
            if only_old:
                only_old -= self._dropped_among(self._new, only_old)
                self._check_complete()
            # First: what was moved there has the key that it has here under its old id.
            self._drop_fired()
            self._keep(sorted(only_old))
            self._journal.flush()

    def _only_in_old(self) -> set[bytes]:
        found: set[bytes] = set()
        lo, done = ID_MIN, 0
        with Snapshot(self._old) as snapshot:
            lengths = (*snapshot.manifest.slots.values(), *snapshot.manifest.laps.values())
            total = sum(lengths) + sum(s.end - s.start for s in snapshot.journals)
        while lo < ID_END:
            chunk = compare(self._old, self._new, lo)
            found.update(put[ID] for put in chunk.missing)
            done += chunk.count
            lo = chunk.hi
            if self._progress is not None:
                self._progress(self._old.path, done, total)
        return found

    def _check_complete(self) -> None:
        """Say when the new primary's drops are not all there: then some of what is kept was fired there already."""
        known = 0 if self._member is None else self._member.overflow
        if self._member is None or Retained(self._new, limit_bytes=1 << 62).overflow() != known:
            self._result.notes.append(
                "the new primary has not kept all it wrote since it was promoted: what is kept may have fired there"
            )

    def _keep(self, ids: list[bytes]) -> None:
        for at in range(0, len(ids), _BATCH):
            with Snapshot(self._old) as snapshot:
                puts = list(snapshot.find(ids[at : at + _BATCH]).values())
            bundle = Bundle(self._journal)
            for put in puts:
                if key_of(put) is None:
                    bundle.add_put(put)
                else:
                    self._keep_keyed(unpack_put(put))
            bundle.write()
            # A slot may remember here what no journal does: such a put is dead at once, but not in a backup that gets
            # it. A crash before this leaves that to whoever rejoins again.
            ids_kept = {put[ID] for put in puts}
            dead = sorted(ids_kept - pending(self._new, ids_kept))
            if dead:
                self._journal.write([pack_drop(i, CANCELLED) for i in dead], 0)
            self._result.kept += len(puts) - len(dead)

    def _keep_keyed(self, message: Message) -> None:
        """Add a message with a unique key; as a dead letter when another message has the key now."""
        now_us = self._clock.now_us()
        try:
            unique.add(self._keys, self._journal, [message], now_us=now_us, path=self._new.path)
        except KeyHeld as exc:
            root = message.root or message.id
            dead = replace(
                message,
                id=self._journal.new_id(DEAD_US + now_us),
                root=root,
                headers={**message.headers, REASON: f"rejoin: {exc.what}"},
            )
            # One commit, as a move: who rejoins again finds the drop, and makes no second dead letter.
            self._journal.write([pack_drop(message.id, CANCELLED), pack_message(dead)], 1)
            self._result.notes.append(f"message {message.id} is a dead letter now: {exc.what}")

    def _drop_fired(self) -> None:
        """Drop in the new primary what the old one has drops of in its journals."""
        batch: set[bytes] = set()
        for frame in self._frames(self._old):
            if frame.drops:
                with contextlib.suppress(Damaged):
                    batch.update(r[ID] for r in records_of(frame)[1])
            if len(batch) >= _BATCH:
                self._drop(batch)
                batch = set()
        self._drop(batch)

    def _drop(self, ids: set[bytes]) -> None:
        there = sorted(pending(self._new, ids))
        if there:
            self._journal.write([pack_drop(i, ACKED) for i in there], 0)
            self._result.dropped += len(there)

    def _dropped_among(self, directory: Directory, ids: set[bytes]) -> set[bytes]:
        found: set[bytes] = set()
        for frame in self._frames(directory):
            if frame.drops:
                with contextlib.suppress(Damaged):
                    found.update(i for r in records_of(frame)[1] if (i := r[ID]) in ids)
        return found

    def _frames(self, directory: Directory) -> Iterator[Frame]:
        """Yield every frame that lies in a wheel's journals, retained segments included."""
        handles = SourceHandles(directory)
        try:
            for writer, segments in list_segments(directory).items():
                for n in sorted(segments):
                    name = layout.segment(writer, n)
                    try:
                        fd = handles.get(name)
                    except FileNotFoundError:
                        continue  # every backup has read it, or the counter of what went too early has changed
                    end = directory.disk.size(fd)
                    for item in scan(directory.disk, fd, 0, end, directory.seed(name)):
                        if isinstance(item, Frame):
                            yield item
        finally:
            handles.close()


@contextlib.contextmanager
def _opened(path: str, disk: DiskFactory) -> Iterator[Directory]:
    opened = open_directory(path, write=False, disk=disk)
    try:
        yield opened
    finally:
        opened.disk.release()
