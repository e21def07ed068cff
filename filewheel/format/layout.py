"""All names in a wheel's directory (docs/format.md, 2), and the seeds of checksums (docs/format.md, 4).

No other module makes or parses a name.

    jobs.wheel/
      wheel.json  wheel.json.copy      format, id, salt, lap length; written once
      keeper.lock                      held by the keeper; names it
      checkpoint  checkpoint.old       covered journal positions and file lengths
      hint                             a pipe: "read the journals"
      begun                            changes with each cancel: "read the journals before you begin a message"
      ballast                          reserved space, freed when the disk is full
      metrics.prom                     counters of a running scheduler; not durable
      running.json                     the messages that the keeper has claimed; not durable
      history/<n>.jsonl                how the last messages ended; not durable
      kills/<id>-<life>-<nonce>.<word>  requests to end a run, and their answers: empty files
      kills/<nonce>.purge              a request to take what has ended out of all files: an empty file
      purged                           another file since the last such work: go on in a new segment
      paused.json  paused.lock         what is paused; made by the first pause, changed under the lock
      journal/<writer>-<n>.log         one writer's enqueues, cancels, acknowledgements
      laps/<lap>-<deal>.lap            a far or long past lap: one file
      laps/<lap>/<second>-<deal>.slot  a near lap: one file for each second with records
      keys/<bb>.keys                   which dealt messages may hold a unique key; written by deals
      keys/<b>.lock                    held while a message takes such a key; made on first use
      ids/<b>.lock                     held while a message with such an id is moved or cancelled; made on first use
      roster.json  roster.lock         the wheels with the same messages; only in a set
      promote.lock                     held by a promotion of the set
      probe                            in a primary: written and removed, to test its disk
      repeats                          exists once a file may hold one message twice: counting compares ids
      far/<wheel>                      in a primary: what its replicator knows of a backup at a URL; not durable
      ticks                            in a backup: the last steps of its copier
      forks                            what each promotion of the set had
      follows.json                     in a backup of filewheel 0.2
      quarantine/<file>@<where>.bin    bytes that did not decode; the reason is beside them in .json
      <name>.tmp                       a file that is being written; a crash may leave one

Names are built from integers and accepted only by a full match, so a message can never become a path, and foreign
files stay untouched. Each file's checksums are seeded with the wheel's salt and the file's name, so frames of another
file, wheel or lap never verify.
Invariant: `parse(make(x)) == x`, and everything else parses to None.
"""

from __future__ import annotations

import functools
import re
import zlib

from filewheel.message import DUE_LIMIT_US, US_PER_S

SETTINGS = "wheel.json"
SETTINGS_COPY = "wheel.json.copy"
SETTINGS_TMP = "wheel.json.tmp"
LOCK = "keeper.lock"
CHECKPOINT = "checkpoint"
CHECKPOINT_OLD = "checkpoint.old"
CHECKPOINT_TMP = "checkpoint.tmp"
HINT = "hint"
BEGUN = "begun"
BALLAST = "ballast"
METRICS = "metrics.prom"
METRICS_TMP = "metrics.prom.tmp"
RUNNING = "running.json"
RUNNING_TMP = "running.json.tmp"
HISTORY = "history"
KILLS = "kills"
PAUSED = "paused.json"
PAUSED_TMP = "paused.json.tmp"
PAUSED_LOCK = "paused.lock"
PURGED = "purged"
PURGED_TMP = "purged.tmp"
JOURNAL = "journal"
LAPS = "laps"
KEYS = "keys"
IDS = "ids"
QUARANTINE = "quarantine"
DIRECTORIES = (JOURNAL, LAPS, KEYS, IDS, QUARANTINE)
ROSTER = "roster.json"
ROSTER_TMP = "roster.json.tmp"
ROSTER_LOCK = "roster.lock"
PROMOTE_LOCK = "promote.lock"
PROBE = "probe"
REPEATS = "repeats"
FAR = "far"
TICKS = "ticks"
SMALL_TMP = "small.tmp"
FORKS = "forks"
FOLLOWS = "follows.json"

SECOND_END = DUE_LIMIT_US // US_PER_S
"""The end of all dues: a name with this number or a larger one is foreign."""
LAP_END = SECOND_END
"""The end of all laps for the shortest lap length; `checkpoint.lap_end` is the end for one wheel."""
SEGMENT_END = 10**12
DEAL_END = 1 << 62
HISTORY_END = 10**12
KEY_BUCKETS = 256
KEY_RECENT = KEY_BUCKETS
"""In place of a bucket: a file of filewheel 0.2, with keys of all buckets."""
KEY_LOCKS = 16
ID_BUCKETS = 16

_WRITER = "[0-9A-HJKMNP-TV-Z]{8}"
_SEGMENT = re.compile(f"({_WRITER})-(?!000000\\.)([0-9]{{6}}|[1-9][0-9]{{6,11}})\\.log")
_SEGMENT_TMP = re.compile(f"\\.({_WRITER})-([0-9]{{6,12}})\\.tmp")
_LAP_FILE = re.compile(r"(0|[1-9][0-9]{0,11})(?:-([1-9][0-9]{0,18}))?\.lap")
_LAP_DIR = re.compile(r"(0|[1-9][0-9]{0,11})")
_SLOT = re.compile(r"(0|[1-9][0-9]{0,11})(?:-([1-9][0-9]{0,18}))?\.slot")
_KEY_FILE = re.compile(r"([0-9a-f]{2}|recent)\.keys")
_ID_LOCK = re.compile(r"[0-9a-f]\.lock")
_HISTORY = re.compile(r"([0-9]{6,12})\.jsonl")
_KILL = re.compile(
    r"([0-7][0-9A-HJKMNP-TV-Z]{25})-([0-9a-f]{16})-[0-9a-f]{8}"
    r"\.(cancel|retry|bury|killed|cancelled|ended|waiting|other|thread|program)"
)
_PURGE = re.compile(r"[0-9a-f]{8}\.purge")
_KEY_SPARE = re.compile(r"([0-9a-f]{1,2}|all)\.lock|\.([0-9a-f]{2}|recent)\.tmp")


def segment(writer: str, n: int) -> str:
    """Name a writer's n-th journal segment (n counts from 1)."""
    return f"{JOURNAL}/{writer}-{n:06d}.log"


def segment_tmp(writer: str, n: int) -> str:
    """Name a segment that is being made."""
    return f"{JOURNAL}/.{writer}-{n:06d}.tmp"


def parse_segment(last: str) -> tuple[str, int] | None:
    """Read (writer, n) from the last part of a segment's name."""
    match = _SEGMENT.fullmatch(last)
    return None if match is None else (match[1], int(match[2]))


def is_segment_of(name: str, writer: str) -> bool:
    """Return whether this names a segment of a writer's journal."""
    return name.startswith(f"{JOURNAL}/{writer}-")


def is_writer(text: str) -> bool:
    """Return whether this is a valid writer name."""
    return re.fullmatch(_WRITER, text) is not None


def is_segment_tmp(last: str) -> bool:
    """Return whether this names an unfinished segment."""
    return _SEGMENT_TMP.fullmatch(last) is not None


def lap_file(lap: int, made: int) -> str:
    """Name the file of a far or past lap that a deal made; deal 0 stands for a file of format 1."""
    return f"{LAPS}/{lap}-{made}.lap" if made else f"{LAPS}/{lap}.lap"


def lap_dir(lap: int) -> str:
    """Name the directory of a near lap."""
    return f"{LAPS}/{lap}"


def slot(lap: int, second: int, made: int) -> str:
    """Name the file of one second that a deal made; deal 0 stands for a file of format 1."""
    return f"{LAPS}/{lap}/{second}-{made}.slot" if made else f"{LAPS}/{lap}/{second}.slot"


def parse_lap_file(last: str) -> tuple[int, int] | None:
    """Read (lap, deal) from the last part of a lap file's name."""
    return _made(_LAP_FILE.fullmatch(last), LAP_END)


def parse_lap_dir(last: str) -> int | None:
    """Read the lap from the last part of a lap directory's name."""
    return _below(last, LAP_END) if _LAP_DIR.fullmatch(last) else None


def parse_slot(last: str) -> tuple[int, int] | None:
    """Read (second, deal) from the last part of a slot's name."""
    return _made(_SLOT.fullmatch(last), SECOND_END)


@functools.cache
def key_file(bucket: int) -> str:
    """Name the file of the keys whose hash begins with this byte, or the file of an older version."""
    return f"{KEYS}/{_key_name(bucket)}.keys"


def _key_name(bucket: int) -> str:
    return "recent" if bucket == KEY_RECENT else f"{bucket:02x}"


@functools.cache
def key_lock(number: int) -> str:
    """Name the file whose lock is held while a message takes one of these keys."""
    return f"{KEYS}/{number:x}.lock"


def key_tmp(bucket: int) -> str:
    """Name a file of keys that is being rewritten."""
    return f"{KEYS}/.{_key_name(bucket)}.tmp"


def parse_key_file(last: str) -> int | None:
    """Read the bucket from the last part of the name of a file of keys."""
    match = _KEY_FILE.fullmatch(last)
    return None if match is None else KEY_RECENT if match[1] == "recent" else int(match[1], 16)


def is_key_spare(last: str) -> bool:
    """Return whether this names a lock of keys or an unfinished file of keys."""
    return _KEY_SPARE.fullmatch(last) is not None


def id_lock(bucket: int) -> str:
    """Name the file whose lock is held while a message of this bucket is moved or cancelled."""
    return f"{IDS}/{bucket:x}.lock"


def is_id_lock(last: str) -> bool:
    """Return whether this names a lock of ids."""
    return _ID_LOCK.fullmatch(last) is not None


def far(wheel: str) -> str:
    """Name the note of a backup at a URL, by its wheel id."""
    return f"{FAR}/{wheel}"


def history(n: int) -> str:
    """Name the n-th file of ended runs (n counts from 1)."""
    return f"{HISTORY}/{n:06d}.jsonl"


def kill(id_: str, life: bytes, nonce: bytes) -> str:
    """Name a request to the keeper of this life to end a run, without the word at its end."""
    return f"{KILLS}/{id_}-{life.hex()}-{nonce.hex()}"


def purge(nonce: bytes) -> str:
    """Name a request to take what has ended out of all files."""
    return f"{KILLS}/{nonce.hex()}.purge"


def is_purge(last: str) -> bool:
    """Return whether this is the last part of the name of such a request."""
    return _PURGE.fullmatch(last) is not None


def parse_kill(last: str) -> tuple[str, bytes, str] | None:
    """Read the id, the keeper's life and the word from the last part of the name of a request or an answer."""
    match = _KILL.fullmatch(last)
    return None if match is None else (match[1], bytes.fromhex(match[2]), match[3])


def parse_history(last: str) -> int | None:
    """Read n from the last part of the name of a file of ended runs."""
    match = _HISTORY.fullmatch(last)
    if match and int(match[1]) and history(int(match[1])).endswith(f"/{last}"):
        return int(match[1])
    return None


def quarantined(name: str, where: int | str) -> str:
    """Name a quarantine item of a file, without extension: bytes by their offset, a record by its checksum."""
    return f"{QUARANTINE}/{name.replace('/', '_')}@{where}"


def _made(match: re.Match[str] | None, end: int) -> tuple[int, int] | None:
    if match is None or int(match[1]) >= end or int(match[2] or 0) >= DEAL_END:
        return None
    return int(match[1]), int(match[2] or 0)


def _below(digits: str, end: int) -> int | None:
    number = int(digits)
    return number if number < end else None


def seed(salt: bytes, name: str) -> int:
    """Return the start value of the checksums in this file."""
    return zlib.crc32(name.encode(), zlib.crc32(salt))  # mutant: no-salt
