"""Verify a wheel: read every byte that should be readable, and report each fault.

Takes no lock and writes nothing, so it runs with or without a keeper, on a damaged wheel and on a read-only mount. A
finding is damage (durable bytes cannot be read) or a note (harmless: left by a crash, or a foreign file), with the
consequence and a remedy.
Invariant: a finding names file and offset; without findings of kind "damage" nothing acknowledged is lost.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from filewheel.disk.checkpoint import Checkpoint, adopt, find_files, read_checkpoint_file
from filewheel.disk.directory import Directory, read_settings
from filewheel.disk.disk import ForeignFile
from filewheel.disk.keeper_lock import Holder, holder
from filewheel.disk.paused import read_pauses
from filewheel.disk.quarantine import items
from filewheel.errors import Damaged, disk_error
from filewheel.format import layout
from filewheel.format.frame import Frame, Gap, pad, scan
from filewheel.format.record import ID, records_of, unpack_put
from filewheel.journal.gaps import UNKNOWN, Account, confirmed, number_before
from filewheel.journal.tail import Handles
from filewheel.journal.walk import Listing, Part, list_segments, parts_above, read_part
from filewheel.keys.check import FOREIGN, Unlisted, check_keys, unreadable
from filewheel.laps.slot import covered_of
from filewheel.laps.window import MISSING, Span, spans_of
from filewheel.message import US_PER_S, due_of
from filewheel.roster.fence import was_in_set
from filewheel.roster.roster import MEND, read_roster
from filewheel.tools.places import check_places

_TRIES = 5


@dataclass(frozen=True)
class Finding:
    """One fault."""

    kind: str
    """"damage", or "note"."""
    name: str
    offset: int
    end: int
    what: str
    hint: str = ""

    @property
    def is_missing(self) -> bool:
        """Whether the whole file is missing."""
        return self.what == MISSING


@dataclass
class Report:
    """The result of `verify`."""

    findings: list[Finding] = field(default_factory=list)
    frames: int = 0
    puts: int = 0
    drops: int = 0
    files: int = 0
    bytes: int = 0
    has_copied_damage: bool = False
    """The wheel is a backup, and has damage that is not repaired: its files are copied from the primary."""

    @property
    def damage(self) -> list[Finding]:
        """The findings of kind "damage"."""
        return [f for f in self.findings if f.kind == "damage"]


Progress = Callable[[int, int], None]
"""Called with (bytes read, total bytes)."""


def verify(directory: Directory, progress: Progress | None = None) -> Report:
    """Read everything and report. Cost: every byte of the wheel once.

    Raises DiskError.
    """
    try:
        for _ in range(_TRIES):
            deal = directory.checkpoint().deal
            report = _Verifier(directory, progress).run()
            # A running keeper makes and removes files during the check; real damage remains in a second check.
            if not report.damage or deal == directory.checkpoint().deal:
                break
    except OSError as exc:
        raise disk_error(exc, directory.path) from exc
    return report


class _Verifier:
    def __init__(self, directory: Directory, progress: Progress | None) -> None:
        self._dir = directory
        self._disk = directory.disk
        self._progress = progress
        self._report = Report()
        self._total = 0
        self._is_copy = False
        self._newest: tuple[tuple[int, int, int] | None, set[str]] = None, set()
        """The last checkpoint read, and the files that it names."""
        self._unlisted = Unlisted(directory)

    def run(self) -> Report:
        keeper = holder(self._dir, "keeper", "backup")
        self._is_copy = self._role() == "backup"
        for note in self._dir.notes:
            what, _, hint = note.partition(". Try: ")
            self._add("damage", layout.SETTINGS, 0, 0, what, hint or "`filewheel repair`")
        self._check_spares()
        checkpoint = self._dir.checkpoint()
        if checkpoint.doubt:
            self._add(
                "damage",
                layout.CHECKPOINT,
                0,
                0,
                checkpoint.doubt,
                "filewheel repair; nothing is lost, but acknowledged messages may fire again",
            )
            lap_of = self._dir.settings.lap_of
            adopt(checkpoint, self._disk, find_files(self._disk, lap_of), lap_of)
        spans = spans_of(self._dir, checkpoint)
        listing = self._list_segments()
        segments = [layout.segment(w, n) for w, numbers in listing.items() for n in numbers]
        self._total = sum(s.end for s in spans) + sum(map(self._size_of, segments))
        for span in spans:
            self._check_file(span, checkpoint)
        self._check_journals(checkpoint, listing)
        self._check_names(checkpoint, keeper)
        check_places(self._dir, self._add)
        is_primary = self._role() == "primary"  # a backup enters its keys on promotion
        check_keys(self._dir, self._unlisted if is_primary else None, self._add)
        self._check_ids()
        self._check_set()
        self._check_pauses()
        for item in items(self._dir):
            self._add(
                "note",
                str(item["item"]),
                0,
                0,
                f"{item.get('name', '?')} at offset {item.get('offset', '?')}: {item.get('reason', '?')}",
                "look at it, then remove it",
            )
        return self._report

    def _add(self, kind: str, name: str, offset: int, end: int, what: str, hint: str = "") -> None:
        if kind == "damage" and self._is_copy and name not in (layout.SETTINGS, layout.SETTINGS_COPY):
            self._report.has_copied_damage = True
            hint = "filewheel backup verify: it is copied from the primary"
        self._report.findings.append(Finding(kind, name, offset, end, what, hint))

    def _read(self, count: int) -> None:
        self._report.bytes += count
        if self._progress is not None:
            self._progress(self._report.bytes, self._total)

    # -- spares ----------------------------------------------------------------------------------------------

    def _check_spares(self) -> None:
        """Check the files that are read only after other damage, before they are needed."""
        try:
            spare = read_settings(self._disk, layout.SETTINGS_COPY, self._dir.place(layout.SETTINGS_COPY))
            what = "" if spare == self._dir.settings else "not the settings of this wheel"
        except FileNotFoundError:
            what = ""
            self._add("note", layout.SETTINGS_COPY, 0, 0, "the file is missing", "filewheel repair")
        except OSError as exc:
            what = unreadable(exc)
        except Damaged as exc:
            what = exc.what
        if what and not self._dir.notes:
            self._add("damage", layout.SETTINGS_COPY, 0, 0, what, "filewheel repair")
        # A crash, or a file system without hard links, may leave none.
        try:
            read_checkpoint_file(
                self._disk,
                layout.CHECKPOINT_OLD,
                self._dir.seed,
                self._dir.settings.lap_of,
                self._dir.place(layout.CHECKPOINT_OLD),
            )
        except FileNotFoundError:
            pass
        except Damaged as exc:
            # It is not needed while the newer one verifies, and the next deal replaces it.
            self._add("note", layout.CHECKPOINT_OLD, 0, 0, exc.what, "the next deal replaces it")

    # -- laps and slots --------------------------------------------------------------------------------------

    def _check_file(self, span: Span, checkpoint: Checkpoint) -> None:
        try:
            fd = self._disk.open(span.name, "r")
        except FileNotFoundError:
            if not self._has_gone(span):
                self._add("damage", span.name, 0, span.end, MISSING, "restore it; filewheel repair accepts the loss")
            return
        except OSError as exc:
            self._add("damage", span.name, 0, span.end, unreadable(exc))
            return
        try:
            self._report.files += 1
            size = self._disk.size(fd)
            if size + 7 < span.end and not checkpoint.doubt:
                what = f"{span.end - size} bytes are missing at the end"
                self._add("damage", span.name, size, span.end, what, "filewheel repair")
            end = min(size, span.end)
            for item in scan(self._disk, fd, 0, end, self._dir.seed(span.name)):
                if isinstance(item, Gap):
                    self._add("damage", span.name, item.offset, item.end, item.reason, "filewheel repair")
                else:
                    self._check_frame(span.name, fd, item, None if span.file is None else span.file.seconds)
            self._read(end)
        finally:
            self._disk.close(fd)

    def _has_gone(self, span: Span) -> bool:
        """Return whether a newer checkpoint no longer names a file.

        A keeper removes a file only after it wrote the checkpoint without it.
        """
        known = self._disk.identity(layout.CHECKPOINT)
        if known is None or known != self._newest[0]:  # read once for all missing files
            newer = self._dir.checkpoint()
            self._newest = known, {s.name for s in spans_of(self._dir, newer)}
        return span.name not in self._newest[1]

    def _check_frame(self, name: str, fd: int, frame: Frame, seconds: tuple[int, int] | None) -> None:
        self._report.frames += 1
        self._report.puts += frame.puts
        self._report.drops += frame.drops
        padding = pad(len(frame.body))
        if self._disk.pread(fd, padding, frame.end - padding).strip(b"\0"):
            self._add("note", name, frame.end - padding, frame.end, "padding that is not zero; it costs nothing")
        try:
            puts, drops = records_of(frame)
            for put in puts:
                self._unlisted.add(unpack_put(put), is_undealt=seconds is None)
        except Damaged as exc:
            self._add("damage", name, frame.offset, frame.end, exc.what)
            return
        ids = [r[ID] for r in (*puts, *drops)]
        if (len(puts), len(drops)) != (frame.puts, frame.drops) or (
            ids and (min(ids), max(ids)) != (frame.first, frame.last)
        ):
            self._add("note", name, frame.offset, frame.end, "the header does not fit the records; the records count")
        if seconds is not None and ids:
            low, high = due_of(frame.first) // US_PER_S, due_of(frame.last) // US_PER_S
            if low < seconds[0] or high >= seconds[1]:
                self._add("damage", name, frame.offset, frame.end, "holds a message with a due outside of this file")

    # -- journals --------------------------------------------------------------------------------------------

    def _list_segments(self) -> Listing:
        """List the segments, without a writer's segments that are newer than the first listing."""
        first, second = list_segments(self._dir), list_segments(self._dir)
        # With a running writer a listing may have a new segment and miss the previous one; a second listing has both.
        # A segment removed since stays in the list: frames that seem missing in the next one may be covered.
        return {w: {n for n in ours | second.get(w, set()) if n <= max(ours)} for w, ours in first.items()}

    def _size_of(self, name: str) -> int:
        known = self._disk.identity(name)
        return known[1] if known else 0

    def _check_journals(self, checkpoint: Checkpoint, listing: Listing) -> None:
        by_writer: dict[str, list[Part]] = {}
        for part in parts_above(listing, checkpoint.positions):
            by_writer.setdefault(part.writer, []).append(part)
        for writer, parts in by_writer.items():
            number = before = number_before(checkpoint, writer, parts[0].segment)
            account = Account()
            for part in parts:
                number = self._check_segment(part, number, account)
            self._report_missing(account, parts, before)

    def _report_missing(self, account: Account, parts: list[Part], number: int) -> None:
        """Report the frames missing from a writer's journal, after all later frames were read."""
        handles = Handles(self._dir)
        try:
            sure = confirmed(account.missing, self._dir, handles.get, parts, number)
        finally:
            handles.close()
        for missing in sure:
            for name, gap in missing.places:
                kind, hint = ("damage", "filewheel repair") if missing.is_proven else ("note", "")
                self._add(kind, name, gap.offset, gap.end, missing.describe(), hint)
        for left in account.judge.passed():
            self._add("note", left.name, left.offset, left.end, "a commit that never completed, at the end")

    def _check_segment(self, part: Part, number: int, account: Account) -> int:
        """Check a part of a segment, after frame `number`; return the last frame's number."""
        name = part.name
        try:
            fd = self._disk.open(name, "r")
        except FileNotFoundError:
            return UNKNOWN  # covered since; a newer checkpoint may cover more of it
        except ForeignFile:
            self._foreign(name)
            return UNKNOWN
        except OSError as exc:
            self._add("damage", name, 0, 0, unreadable(exc))
            return number
        try:
            self._report.files += 1
            for item in read_part(self._dir, fd, part):
                number = account.add(name, item, number)
                if isinstance(item, Frame):
                    self._check_frame(name, fd, item, None)
            self._read(self._disk.size(fd))
        finally:
            self._disk.close(fd)
        return number

    def _check_names(self, checkpoint: Checkpoint, keeper: Holder | None) -> None:
        for last in self._disk.listdir(layout.JOURNAL):
            if layout.parse_segment(last) is None and not layout.is_segment_tmp(last):
                self._foreign(f"{layout.JOURNAL}/{last}")
        for last in self._disk.listdir(layout.LAPS):
            name = f"{layout.LAPS}/{last}"
            lap_file, lap_dir = layout.parse_lap_file(last), layout.parse_lap_dir(last)
            if lap_file is not None:
                self._stray(name, checkpoint, keeper)
            elif lap_dir is None:
                self._foreign(name)
            else:
                self._check_lap_dir(name, lap_dir, checkpoint, keeper)

    def _check_lap_dir(self, name: str, lap: int, checkpoint: Checkpoint, keeper: Holder | None) -> None:
        try:
            inside = self._disk.listdir(name)
        except FileNotFoundError:
            return  # removed since the listing
        except NotADirectoryError:
            self._foreign(name)
            return
        for inner in inside:
            slot = layout.parse_slot(inner)
            if slot is None or self._dir.settings.lap_of(slot[0]) != lap:
                self._foreign(f"{name}/{inner}")
            else:
                self._stray(f"{name}/{inner}", checkpoint, keeper)

    def _check_ids(self) -> None:
        """Check the names of the locks of ids."""
        try:
            names = self._disk.listdir(layout.IDS)
        except FileNotFoundError:
            return
        except NotADirectoryError:
            return  # `check_places` reports it
        for last in sorted(names):
            if not layout.is_id_lock(last):
                self._foreign(f"{layout.IDS}/{last}")

    def _role(self) -> str:
        """Return the wheel's role in its set; "primary" if it stands alone, and "" if that cannot be read."""
        try:
            roster = read_roster(self._disk, self._dir.path)
        except (Damaged, OSError):
            return ""  # reported elsewhere
        return "primary" if roster is None else roster.role

    def _check_set(self) -> None:
        """Check the roster of a wheel in a set."""
        try:
            if read_roster(self._disk, self._dir.path) is None and was_in_set(self._disk):
                self._add("damage", layout.ROSTER, 0, 0, "the file is missing, and it was in a set", MEND)
        except Damaged as exc:
            self._add("damage", layout.ROSTER, 0, 0, exc.what, exc.hint or "")
        except OSError as exc:
            self._add("damage", layout.ROSTER, 0, 0, unreadable(exc))

    def _check_pauses(self) -> None:
        try:
            read_pauses(self._disk, self._dir.path)
        except Damaged as exc:
            what = f"{exc.what}: what is paused is not known, and no keeper can start"
            self._add("damage", layout.PAUSED, 0, 0, what, exc.hint or "")
        except OSError as exc:
            self._add("damage", layout.PAUSED, 0, 0, unreadable(exc))

    def _foreign(self, name: str) -> None:
        self._add("note", name, 0, 0, FOREIGN)

    def _stray(self, name: str, checkpoint: Checkpoint, keeper: Holder | None) -> None:
        # A running keeper may be dealing: the checkpoint does not name its new files yet.
        known = covered_of(self._dir.settings, checkpoint, name) is not None
        if not known and keeper is None and not checkpoint.doubt:
            self._add("note", name, 0, 0, "left by a deal that never completed; the next keeper removes it")
