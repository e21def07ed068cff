"""Where the wheel is: the directory, its file system, the mount options, and the room on it.

The mount is found by its path: a subvolume of btrfs has another device number than the table of mounts says. Of the
options that have a value only known ones keep it, because others hold paths, users and addresses.
Invariant: writes nothing, and what cannot be found out is null.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from dataclasses import dataclass
from typing import Any

from filewheel.tools import NETWORK_TYPES

_MOUNTS = "/proc/self/mountinfo"
_KEPT = frozenset(
    {
        "atime", "barrier", "commit", "compress", "compress-force", "data", "errors", "huge", "journal_async_commit",
        "logbsize", "logbufs", "max_batch_time", "min_batch_time", "nr_blocks", "nr_inodes", "size", "space_cache",
        "stripe", "sunit", "swidth", "vers", "rsize", "wsize", "timeo", "retrans", "local_lock", "lookupcache",
        "cache", "actimeo", "xino", "redirect_dir", "metacopy", "index", "volatile", "ssd",
    }
)  # fmt: skip


@dataclass(frozen=True)
class Mount:
    """One line of the table of mounts."""

    point: str
    kind: str
    options: tuple[str, ...]


def place_of(path: str) -> dict[str, Any]:
    """Describe the place of a wheel that may be missing, or not readable."""
    real = os.path.realpath(path)
    found = mount_of(real)
    fields: dict[str, Any] = {
        "path": hidden(os.path.abspath(path)),
        "exists": None,
        "mode": None,
        "yours": None,
        "file_system": found.kind if found else None,
        "network": found.kind in NETWORK_TYPES if found else None,
        "mount_options": list(found.options) if found else None,
        "mount_point": real == found.point if found else None,
        "free_bytes": None,
        "free_files": None,
    }
    try:
        info = os.stat(real)
        fields |= {
            "exists": True, "mode": f"{stat.S_IMODE(info.st_mode):04o}", "yours": info.st_uid == os.geteuid()
        }  # fmt: skip
    except (FileNotFoundError, NotADirectoryError):
        fields["exists"] = False
    except OSError:
        pass  # not known: its parent cannot be read
    with contextlib.suppress(OSError):
        room = os.statvfs(real)
        # btrfs counts no files.
        fields |= {"free_bytes": room.f_bavail * room.f_frsize, "free_files": room.f_favail if room.f_files else None}
    return fields


def mount_of(real: str) -> Mount | None:
    """Return the mount that a real path is on; None where the system has no table of mounts."""
    found: Mount | None = None
    try:
        with open(_MOUNTS, encoding="utf-8", errors="replace") as lines:
            for line in lines:
                one = parse_mount(line)
                # The last one counts of several at one place: it covers the others.
                if one and _is_in(real, one.point) and (found is None or len(one.point) >= len(found.point)):
                    found = one
    except OSError:
        return None
    return found


def parse_mount(line: str) -> Mount | None:
    """Read a line of the table of mounts; None for one of an unknown form."""
    fields = line.split()
    try:
        end = fields.index("-", 6)
        point, kind, options = fields[4], fields[end + 1], [*fields[5].split(","), *fields[end + 3].split(",")]
    except (IndexError, ValueError):
        return None
    point = re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), point)
    return Mount(point, kind, tuple(dict.fromkeys(map(_shown, options))))


def _is_in(path: str, point: str) -> bool:
    return point == "/" or path == point or path.startswith(f"{point}/")


def _shown(option: str) -> str:
    name, _, value = option.partition("=")
    return option if not value or name in _KEPT else f"{name}=(hidden)"


def hidden(text: str) -> str:
    """Return a text with ~ in the place of the home directory."""
    home = os.path.expanduser("~")
    return re.sub(rf"{re.escape(home)}(?=/|$|\W)", "~", text) if len(home) > 1 and home.startswith("/") else text
