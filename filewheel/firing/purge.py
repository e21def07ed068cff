"""`purge`: what was cancelled or acknowledged is out of every file of a wheel here when it returns.

Only the holder of keeper.lock changes laps and keys. So a purge makes a request, an empty file in `kills/`. The holder
deals the journals as far as they are written, deals each lap and slot file with something that has ended anew, compacts
the index of keys, and removes the request: ordinary deals, one in each of its steps, so firing goes on and a crash
anywhere loses nothing. If nobody holds the lock, the asker takes it and does the same. A producer has a segment that
only it may end. It looks five times a second while it writes whether `purged` is another file, and then goes on in a
new segment. The history and the quarantine need no lock: the asker cleans them.
Invariant: nothing that is pending is removed, and each place here that may still hold a message which had ended when
the call began is named, with the way to reach it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import islice

from filewheel.checks import check_flag, check_items, check_number
from filewheel.disk.directory import Directory, opened
from filewheel.disk.disk import NO_DIRECTORY, ForeignFile, is_unreadable
from filewheel.disk.keeper_lock import KeeperLock, holder
from filewheel.disk.replace import replace_file
from filewheel.errors import BadArgument, Damaged, FilewheelError, Locked, disk_errors, said_of
from filewheel.format import layout
from filewheel.format.frame import Frame, scan
from filewheel.format.limits import check_key, check_topic, matches
from filewheel.format.record import ID, readable_records, unpack_put
from filewheel.journal.tail import Handles
from filewheel.journal.walk import Part, list_segments, read_part
from filewheel.keys.index import Keys
from filewheel.keys.upkeep import Compactor, unreadable_keys
from filewheel.laps.deal import ANEW_BYTES, Deal, Finished
from filewheel.laps.slot import File, covered_of, files_of
from filewheel.laps.store import Store
from filewheel.laps.window import read_file
from filewheel.lookup.finder import Finder
from filewheel.lookup.snapshot import Snapshot
from filewheel.message import ID_END, RESULT, Message, MessageId
from filewheel.roster.far import read_note
from filewheel.roster.roster import Member, read_roster
from filewheel.runs.history import read_history, remove_ends
from filewheel.runs.run import Ended
from filewheel.runs.running import remove_running

TIMEOUT_S = 10.0
NONCE_BYTES = 4
_PAUSE_S = 0.02
_AT_ONCE = 20_000
"""How many puts of a journal are looked up together."""
_FILES_AT_ONCE = 500
"""How many lap and slot files the holder looks at in one step."""
_NAMED = 100
"""How many results that wait are named one by one."""
_EVER_US = 1 << 62
_SET_ASIDE = "bytes that could not be read, perhaps of a message that has ended"


@dataclass(frozen=True)
class Unreached:
    """A place that may still hold an ended message."""

    place: str
    what: str
    """Why it could not be reached."""
    hint: str
    """How to reach it."""


@dataclass(frozen=True)
class Purged:
    """The result of a purge. True when every place was reached."""

    history: int = 0
    """Ends of runs that were removed from the history."""
    quarantine: int = 0
    """Items that were removed from quarantine."""
    unreached: tuple[Unreached, ...] = ()

    def __bool__(self) -> bool:
        return not self.unreached


@dataclass(frozen=True)
class Choice:
    """The messages that are meant: all, or those with one of these ids, this topic (or glob), or this key."""

    ids: frozenset[bytes] = frozenset()
    topic: str | None = None
    key: str | None = None

    @classmethod
    def of(cls, ids: Iterable[MessageId | str | bytes] | None, topic: str | None, key: str | None) -> Choice:
        """Return a checked choice. Raises BadArgument."""
        wanted = (
            frozenset(bytes(MessageId.parse(i)) for i in check_items("ids", ids)) if ids is not None else frozenset()
        )
        if ids is not None and not wanted:
            raise BadArgument("no ids were given", hint="leave `ids` out for all that has ended")
        if topic is not None:
            check_topic(topic)
        if key is not None:
            check_key(key)
        if sum((bool(wanted), topic is not None, key is not None)) > 1:
            raise BadArgument("a purge takes ids, a topic or a key, one of them", hint="call it once for each")
        return cls(wanted, topic, key)

    @property
    def is_all(self) -> bool:
        """Whether every message is meant."""
        return not self.ids and self.topic is None and self.key is None

    def _has(self, ids: Iterable[bytes | None], topic: str, key: str | None) -> bool:
        return (
            self.is_all
            or not self.ids.isdisjoint(i for i in ids if i is not None)
            or (self.topic is not None and matches(topic, self.topic))
            or (self.key is not None and key == self.key)
        )

    def has_put(self, put: bytes) -> bool:
        """Return whether the message of a packed put is meant, by its id or its first one, its topic or its key.

        A result is meant by the id of its call, too.
        """
        if self.is_all or put[ID] in self.ids:
            return True
        try:
            message = unpack_put(put)
        except Damaged:
            return False
        return self._has([message.root, call_of_result(message)], message.topic, message.key)

    def with_tries(self, ends: Iterable[Ended]) -> Choice:
        """Return this choice with the first ids of the messages whose ids it has: each try has an id of its own."""
        firsts = {bytes(e.first_id) for e in ends if self.ids and self._has([e.id, e.moved_to], e.topic, e.key)}
        return replace(self, ids=self.ids | firsts)

    def has_end(self, ended: Ended) -> bool:
        """Return whether a line of the history is of such a message."""
        return self._has([ended.id, ended.first_id], ended.topic, ended.key)


def call_of_result(message: Message) -> bytes | None:
    """Return the id of the call whose result a message is; None of other messages."""
    prefix, _, call = (message.key or "").partition(":")
    with contextlib.suppress(BadArgument):
        return bytes(MessageId.parse(call)) if prefix == RESULT else None
    return None


def _quarantined(directory: Directory) -> list[str]:
    """Return the items with bytes in a quarantine, not their notes."""
    try:
        names = sorted(directory.disk.listdir(layout.QUARANTINE))
    except NO_DIRECTORY:
        return []
    return [f"{layout.QUARANTINE}/{last}" for last in names if not last.endswith(".json")]


# -- the holder of keeper.lock ---------------------------------------------------------------------------------


def take_out(
    store: Store,
    keys: Compactor,
    *,
    spread: bool = False,
    finished: Finished | None = None,
    publish: Callable[[], None] = lambda: None,
) -> Iterator[bool]:
    """Do what the requests of now ask for, and remove them. Yields True after each part; ends at once without any.

    `spread` and `finished` are those of the deals, `publish` writes the ends of runs to the history. When the requests
    go, no file but the segments in use has a put that had ended before, unless it cannot be read whole or is missing.
    Cost: reads the headers in each lap and slot file. Raises OSError, DiskError; the requests stay then.
    """
    directory = store.dir
    asked = requests(directory)
    if not asked:
        return

    def deal(anew: Iterable[str] = ()) -> None:
        Deal(store, spread=spread, finished=finished, anew=frozenset(anew)).run()

    def stays(names: Iterable[str]) -> bool:
        """Return whether a deal left a file as it was that can be read whole: a call had failed for a moment."""
        files = [file for file in files_of(directory.settings, store.checkpoint) if file.name in names]
        with contextlib.closing(Handles(directory, limit=1)) as handles:
            return any(None not in read_file(directory, handles, file, 0) for file in files)

    with store.lock:
        upto = store.cut()
    while left := {w: t.covered for w, p in upto.items() if (t := store.tails.get(w)) is not None and t.covered < p}:
        deal()
        if all(w in store.tails and store.tails[w].covered == covered for w, covered in left.items()):
            return  # something holds it up: the request stays, and its asker tells that
        yield True
    worn: dict[str, int] = {}
    with contextlib.closing(Handles(directory, limit=1)) as handles:
        for n, file in enumerate(list(files_of(directory.settings, store.checkpoint)), 1):
            if has_ended(directory, handles, file):
                worn[file.name] = file.end
            if sum(worn.values()) >= ANEW_BYTES:
                deal(worn)  # mutant: purge-keeps-laps
                if stays(worn):
                    return
                worn = {}
                yield True
            elif n % _FILES_AT_ONCE == 0:
                yield True
    deal(worn)  # mutant: purge-keeps-laps.2
    if stays(worn):
        return  # the request stays, and the next step does it again
    yield True
    keys.tidy(_EVER_US, ())  # takes in the entries of a file of filewheel 0.2
    for bucket in range(layout.KEY_BUCKETS):
        if directory.disk.identity(layout.key_file(bucket)) is not None:
            with contextlib.suppress(Damaged):  # the asker names a file that cannot be read
                keys.compact(bucket, _EVER_US)
            yield True
    publish()
    deal()  # now the checkpoint before names nothing that is gone
    _forget(directory, asked)


def has_ended(directory: Directory, handles: Handles, file: File) -> bool:
    """Return whether a file may have bytes of messages that have ended. Cost: the headers of its frames.

    It may if it has drops, but for those that its own deal kept for messages which may be put twice; if a part of it
    cannot be read; and if it has bytes of a deal that was cut off. A missing file has none.
    """
    try:
        fd = handles.get(file.name)
        size = directory.disk.size(fd)
        frames = scan(directory.disk, fd, 0, min(file.end, size), directory.seed(file.name), headers=True)
        return size > file.end or any(
            not isinstance(item, Frame) or (item.drops > 0 and item.number > file.made) for item in frames
        )
    except FileNotFoundError:
        return False
    except OSError as exc:
        if not is_unreadable(exc):
            raise
        return True


def requests(directory: Directory) -> list[str]:
    """Return the requests that wait. Cost: a listing. Raises OSError."""
    try:
        found = directory.disk.listdir(layout.KILLS)
    except NO_DIRECTORY:
        return []
    return [f"{layout.KILLS}/{last}" for last in found if layout.is_purge(last)]


def _forget(directory: Directory, asked: Iterable[str]) -> None:
    """Remove requests, which answers them."""
    for name in asked:
        with contextlib.suppress(FileNotFoundError):  # it was withdrawn
            directory.disk.unlink(name)


# -- the asker -------------------------------------------------------------------------------------------------


def purge(
    directory: Directory,
    choice: Choice,
    *,
    quarantine: bool,
    timeout_s: float,
    has_deal: Callable[[Directory, int], bool],
) -> Purged:
    """Take what has ended out of the files; return what was done, and what is left. Raises as Wheel.purge.

    `has_deal` tells whether a backup has a deal, and no file that this one left out.
    """
    check_flag("quarantine", quarantine)
    timeout_s = check_number("timeout_s", timeout_s, least=0)
    with disk_errors(directory.path):
        return _Purge(directory, choice, timeout_s, has_deal).run(quarantine=quarantine)


@dataclass
class _Purge:
    """One call."""

    dir: Directory
    choice: Choice
    timeout_s: float
    has_deal: Callable[[Directory, int], bool]
    unreached: list[Unreached] = field(default_factory=list)
    results: dict[bytes, bytes] = field(default_factory=dict)
    """The results of meant calls that wait: id of the call → its own id."""

    def run(self, *, quarantine: bool) -> Purged:
        self.choice = self.choice.with_tries(read_history(self.dir))
        replace_file(self.dir.disk, layout.PURGED, layout.PURGED_TMP, b"", flush=False)
        segments = self._ended_segments()
        is_done = self._ask()
        left = [name for name in segments if self.dir.disk.identity(name) is not None]
        if is_done and left:
            # They were in use when the holder came to them. Their programs go on in other ones.
            self._wait(lambda: not any(map(self._is_in_use, left)))
            is_done = self._ask()
        self._look_at_pending()
        ends = remove_ends(self.dir, self._is_meant)
        items = self._clean_quarantine() if quarantine else 0
        who = holder(self.dir, "keeper", "backup", "tidy", "repair", "promote", "rejoin")
        if who is None:
            remove_running(self.dir)
        if not is_done:
            what = f"{who or 'another program'} has the wheel, and did not take out what has ended in time"
            self._name(f"{layout.JOURNAL}, {layout.LAPS}, {layout.KEYS}", what, "purge again, or with more --timeout")
        self._look_at_segments(segments)
        self._look_at_laps()
        self._look_at_the_rest()
        ends += self._look_at_backups()
        return Purged(ends, items, tuple(self.unreached))

    def _wait(self, is_so: Callable[[], bool]) -> bool:
        """Wait until something is so; return whether it was in time."""
        left_s = self.timeout_s
        while not is_so():
            if left_s <= 0:
                return False
            left_s -= _PAUSE_S
            self.dir.disk.wait_hint(None, _PAUSE_S)
        return True

    def _ask(self) -> bool:
        """Have the holder of keeper.lock take out what has ended, or do it; return whether it was done in time."""
        disk = self.dir.disk
        name = layout.purge(self.dir.env.entropy(NONCE_BYTES))
        with contextlib.suppress(FileExistsError):
            disk.mkdir(layout.KILLS)
        disk.close(disk.open(name, "x"))
        try:
            return self._wait(lambda: disk.identity(name) is None or self._do_it())
        finally:
            _forget(self.dir, [name])

    def _do_it(self) -> bool:
        """Do the holder's part, if nobody holds keeper.lock; return whether all requests were done."""
        lock = KeeperLock(self.dir)
        try:
            lock.take("purge", wait=False)
            with contextlib.closing(Store(self.dir)) as store:
                store.recover()
                for _ in take_out(store, Compactor(Keys(self.dir))):
                    pass
            return not requests(self.dir)
        except Locked:
            return False
        finally:
            lock.release()

    def _clean_quarantine(self) -> int:
        """Remove all items with bytes, and their notes; return how many."""
        items = _quarantined(self.dir)
        for item in items:
            for name in (item, f"{item.removesuffix('.bin')}.json"):
                with contextlib.suppress(FileNotFoundError):
                    self.dir.disk.unlink(name)
        return len(items)

    # -- journals --------------------------------------------------------------------------------------------

    def _ended_segments(self) -> list[str]:
        """Return the segments with messages that have ended and are meant. Cost: reads all journals."""
        finder, found = Finder(self.dir), []
        for writer, numbers in list_segments(self.dir).items():
            for part in [Part(writer, n) for n in sorted(numbers)]:
                try:
                    fd = self.dir.disk.open(part.name, "r")
                except (FileNotFoundError, ForeignFile):
                    continue
                try:
                    ids = (put[ID] for put in self._puts(fd, part))
                    while some := set(islice(ids, _AT_ONCE)):
                        if some - finder.pending(some):
                            found.append(part.name)
                            break
                finally:
                    self.dir.disk.close(fd)
        return found

    def _puts(self, fd: int, part: Part) -> Iterator[bytes]:
        """Yield the puts in a segment that are meant."""
        for item in read_part(self.dir, fd, part):
            if isinstance(item, Frame) and item.puts:
                yield from filter(self.choice.has_put, readable_records(item)[0])

    def _is_in_use(self, name: str) -> bool:
        """Return whether a program writes to a segment."""
        try:
            fd = self.dir.disk.open(name, "r")
        except FileNotFoundError:
            return False
        try:
            return not self.dir.disk.is_free(fd)
        finally:
            self.dir.disk.close(fd)

    def _is_meant(self, ended: Ended) -> bool:
        """Return whether an end goes: it is meant, and no result needs it, which has only the id of its call."""
        return self.choice.has_end(ended) and ended.first_id not in self.results

    # -- what is left ----------------------------------------------------------------------------------------

    def _name(self, place: str, what: str, hint: str) -> None:
        self.unreached.append(Unreached(place, what, hint))

    def _look_at_segments(self, segments: list[str]) -> None:
        for name in segments:
            if self._is_in_use(name):
                hint = f"let it write, close the wheel or end (`fuser -v {self.dir.place(name)}`); purge again"
                self._name(name, "a program that runs has it in use", hint)
            elif self.dir.disk.identity(name) is not None:
                self._name(name, "it is not dealt yet", "purge again")

    def _look_at_laps(self) -> None:
        with contextlib.closing(Handles(self.dir, limit=1)) as handles:
            for file in files_of(self.dir.settings, self.dir.checkpoint()):
                is_missing = self.dir.disk.identity(file.name) is None
                is_bad = is_missing or (
                    has_ended(self.dir, handles, file) and None in read_file(self.dir, handles, file, 0)
                )
                # Unless it was removed meanwhile.
                if is_bad and covered_of(self.dir.settings, self.dir.checkpoint(), file.name) is not None:
                    what = "the file is missing" if is_missing else "it cannot be read whole"
                    self._name(file.name, what, "`filewheel repair`, or put the file back as it was; purge again")

    def _look_at_pending(self) -> None:
        """Name the messages that are meant and wait, which no purge takes out. Cost: reads all that waits.

        Among them are the results of the ids that are meant, and of the calls in the history that are.
        """
        if self.choice.is_all:
            return
        calls = {bytes(ended.first_id) for ended in read_history(self.dir) if self.choice.has_end(ended)}
        meant = replace(self.choice, ids=self.choice.ids | calls)
        first, count = b"", 0
        with Snapshot(self.dir) as snapshot:
            for put in filter(meant.has_put, snapshot.puts(hi=ID_END)):
                call = None
                with contextlib.suppress(Damaged):
                    call = call_of_result(unpack_put(put))
                if call is not None:
                    self.results[call] = put[ID]
                else:
                    first, count = first or put[ID], count + 1
        if first:
            others = f", and {count - 1:,} more do" if count > 1 else ""
            hint = "cancel it, or drop it if it is a dead letter; purge again"
            self._name(str(MessageId(first)), f"it waits{others}: only what has ended is taken out", hint)
        for call, id_ in islice(self.results.items(), _NAMED):
            what = f"the result of the call {MessageId(call)} waits until it expires"
            self._name(str(MessageId(id_)), what, "cancel it; purge again")

    def _look_at_the_rest(self) -> None:
        for name, what in unreadable_keys(self.dir):
            self._name(name, f"it cannot be read: {what}", "`filewheel repair`; purge again")
        for name in _quarantined(self.dir):
            hint = "look at it; `filewheel purge --quarantine` removes all such bytes"
            self._name(name, _SET_ASIDE, hint)

    def _look_at_backups(self) -> int:
        """Wait for the backups to follow, and name those that did not; clean the history that each may have.

        It is of the time when the backup was the primary. Returns how many ends were removed.
        """
        roster, deal = read_roster(self.dir.disk, self.dir.path), self.dir.checkpoint().deal
        members = roster.members if roster is not None else ()
        behind = list(members)

        def all_follow() -> bool:
            behind[:] = [member for member in behind if not self._follows(member, deal)]
            return not behind

        self._wait(all_follow)
        for member in behind:
            what = "a backup that is behind: it drops what has ended when it is in step again"
            hint = "purge again while `filewheel replicate` runs, or see `filewheel backup list`"
            if member.state == "fenced":
                what, hint = "it was fenced", f"`filewheel -C {member.path} rejoin`; purge again"
            elif member.keep_us:
                what = "a bucket with --keep: it deletes what has ended when that time is over"
                hint = f"`filewheel backup add {member.path} --keep 0`, with a replicator that runs; purge again"
            self._name(member.path, what, hint)
        ends = 0
        for member in members:
            if member in behind or member.is_far:
                continue
            try:
                with opened(member.path, self.dir.env) as there:
                    ends += remove_ends(there, self._is_meant)
                    quarantined = _quarantined(there)
            except (FilewheelError, OSError) as exc:
                self._name(f"{member.path}/{layout.HISTORY}", said_of(exc, member.path), "mend that; purge again")
                continue
            for name in quarantined:
                self._name(f"{member.path}/{name}", _SET_ASIDE, "look at it, and remove it")
        return ends

    def _follows(self, member: Member, deal: int) -> bool:
        try:
            if member.is_far:
                note = read_note(self.dir.disk, member.wheel)
                return member.state == "current" and not note.error and note.clean >= deal
            with opened(member.path, self.dir.env) as there:
                return member.state == "current" and there.settings.id == member.wheel and self.has_deal(there, deal)
        except (FilewheelError, OSError):  # it cannot be read now
            return False
