"""Two small files beside the wheel of a partition: where its records come from, and from where to read on.

`source.json` names the cluster, the topic and the partition. It is durable before the first record is, so data of
another topic is never mixed in. `position` holds the next offset to read, as a *lower bound*: every record before it
is durable in the wheel, or done. It is written after a flush of the journal and never flushed itself. A power cut may
leave an older one, or none; then more is read again, which changes nothing. An offset in the journal's frames would not
do: after a power cut a later frame may survive an earlier one (docs/adr/0044-the-position-is-a-lower-bound.md).
A position names the losses of the wheel that were known (losses.py); with others it says nothing. It also names the
last record that was read, with its epoch (records/last_read.py): so a log that was cut since is noticed.
Invariant: no record before the position is missing from a wheel that has it.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace

from filewheel.disk.directory import Directory
from filewheel.disk.replace import replace_file
from filewheel.errors import BadArgument, Damaged, WrongSource
from filewheel.format import layout
from filewheel.format.sealed import seal, unseal
from filewheel.kafka.records.last_read import LastRead, as_last_read

SOURCE = "source.json"
_SOURCE_TMP = "source.json.tmp"
POSITION = "position"
_SOURCE_BYTES_MAX = 4096
_SLOT_BYTES = 512
_SLOTS_AT = (0, 4096)
"""Two places, in pages of their own: a write that a power cut tears leaves the other."""
_HINT = "stop the node and remove this directory: it is rebuilt from the delay topic"
_OTHER_HINT = "give this node another --data; remove this directory only if nothing else uses it"


@dataclass(frozen=True, slots=True)
class RecordOrigin:
    """Where the records of a wheel come from."""

    cluster: str
    topic: str
    partition: int
    topic_id: str = ""
    """The cluster's id of the topic, empty if unknown: a topic that is made again begins at offset 0."""
    options: str = ""
    """The digest of the options that gave the records their ids, empty if unknown."""

    def is_same(self, other: RecordOrigin) -> bool:
        """Return whether these are the same records; an unknown id of the topic fits any."""
        mine, its = self.topic_id, other.topic_id
        return (self.cluster, self.topic, self.partition) == (other.cluster, other.topic, other.partition) and (
            not mine or not its or mine == its
        )


def check_source(directory: Directory, source: RecordOrigin) -> None:
    """Write the source into a wheel that has none, or compare. Durable on return. Called with the keeper's lock held.

    Raises WrongSource when the wheel has records of another source; BadArgument when other options gave them their ids;
    Damaged, OSError.
    """
    found = _read_source(directory)
    if found is not None:
        if not found.is_same(source):  # mutant: kafka-source-unchecked
            raise WrongSource(
                f"it holds records of {_named(found)}, not of {_named(source)}", path=directory.path, hint=_OTHER_HINT
            )
        if source.options and found.options not in ("", source.options):  # mutant: kafka-wheel-of-other-options
            raise BadArgument(
                f"{directory.path}: it was filled with another --horizon, --on-horizon, --default-target or --keyed",
                hint="give all nodes the same options; docs/kafka.md says how to change them",
            )
        merged = replace(source, topic_id=found.topic_id or source.topic_id, options=found.options or source.options)
        if merged == found:
            return
        source = merged
    elif directory.checkpoint().deal or directory.disk.listdir(layout.JOURNAL):
        raise Damaged("it is missing, and the wheel has records", path=directory.place(SOURCE), hint=_HINT)
    replace_file(directory.disk, SOURCE, _SOURCE_TMP, seal(asdict(source)))


def _named(source: RecordOrigin) -> str:
    made = f" (id {source.topic_id})" if source.topic_id else ""
    return f"partition {source.partition} of topic {source.topic}{made} in cluster {source.cluster}"


def _read_source(directory: Directory) -> RecordOrigin | None:
    """Return the source of a wheel; None if it has none. Raises Damaged, OSError."""
    try:
        fd = directory.disk.open(SOURCE, "r")
    except FileNotFoundError:
        return None
    try:
        data = directory.disk.pread(fd, _SOURCE_BYTES_MAX, 0)
    finally:
        directory.disk.close(fd)
    try:
        return RecordOrigin(**unseal(data))
    except (ValueError, TypeError) as exc:
        raise Damaged(f"it is unreadable: {exc}", path=directory.place(SOURCE), hint=_HINT) from exc


class PositionFile:
    """The file `position` of one wheel. Not thread-safe: the partition's flush guards it."""

    def __init__(self, directory: Directory, lost: int) -> None:
        """Read it, for a wheel with these known losses (their digest). A damaged one counts as none. Raises OSError."""
        self._dir = directory
        self._lost = lost
        self._turn = 0
        self.offset: int | None = None
        """The largest offset that was written; None if there is none, 0 if the wheel lost something since."""
        self.last_read: LastRead | None = None
        """The last record that was read before that write, with its epoch; None if it was not known."""
        fd = directory.disk.open(POSITION, "rw")
        try:
            found = [self._read(fd, at) for at in _SLOTS_AT]
        finally:
            directory.disk.close(fd)
        known = [one for one in found if one is not None]
        if known:
            newest = max(known, key=lambda one: one[0])
            self.offset, self.last_read = newest
            self._turn = 1 - found.index(newest)

    def _read(self, fd: int, at: int) -> tuple[int, LastRead | None] | None:
        data = self._dir.disk.pread(fd, _SLOT_BYTES, at).rstrip(b"\0")
        try:
            fields = unseal(data, lines=False)
        except ValueError:
            return None  # torn by a power cut, or never written
        offset = fields.get("next")
        # A file that was copied from another wheel says nothing about this one.
        is_ours = fields.get("wheel") == self._dir.settings.id  # mutant: kafka-position-of-another
        if not is_ours or type(offset) is not int or offset < 0:
            return None
        offset = offset if fields.get("lost", 0) == self._lost else 0  # mutant: kafka-loss-passed-over
        return offset, as_last_read(fields.get("read"))  # mutant: kafka-position-without-epoch

    def write(self, offset: int, last_read: LastRead | None = None) -> None:
        """Write an offset before which every record is durable. Cost: one write. Raises OSError.

        A crash here leaves the one before: the two places are written in turns.
        """
        fields = {"wheel": self._dir.settings.id, "next": offset, "lost": self._lost, "read": last_read}
        data = seal(fields, lines=False)
        fd = self._dir.disk.open(POSITION, "rw")
        try:
            self._dir.disk.pwrite(fd, data.ljust(_SLOT_BYTES, b"\0"), _SLOTS_AT[self._turn])
        finally:
            self._dir.disk.close(fd)
        self._turn = 1 - self._turn
        self.offset = offset if self.offset is None else max(self.offset, offset)
        self.last_read = last_read
