"""The shim seen from Python: compiling it, arming it, and which faults there are for which system call.

shim.c does the work inside of the process whose calls fail. A plan says: the n-th call of a kind, and what happens to
it. Invariant: the numbers of kinds and actions are those of the two enums in shim.c.
"""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

KINDS = (
    "open", "write", "read", "fsync", "fdatasync", "syncfs", "truncate", "allocate", "rename", "link", "unlink",
    "rmdir", "mkdir", "mkfifo", "flock", "space", "list", "entry", "stat", "statfs", "fstat", "dup", "seek", "close",
    "readlink", "thread",
)  # fmt: skip
ACTIONS = (
    "pass", "fail", "short", "torn-fail", "torn-kill", "kill", "kill-after", "fail-lost", "fail-stuck",
    "fail-then-kill",
)  # fmt: skip
KILLS = frozenset({"torn-kill", "kill", "kill-after", "fail-then-kill"})
SOURCE = Path(__file__).with_name("shim.c")

_KILLED = [("kill", 0), ("kill-after", 0)]
_INTERRUPTED = [("fail", errno.EINTR)]


def _fails(*codes: int) -> list[tuple[str, int]]:
    return [("fail", code) for code in codes]


_BAD_DISK = [*_fails(errno.EIO), ("fail-stuck", errno.EIO)]
_FLUSH = [
    *_BAD_DISK,
    ("fail", errno.ENOSPC),
    ("fail-lost", errno.EIO),
    ("fail-lost", errno.ENOSPC),
    ("fail-then-kill", errno.EIO),
    *_KILLED,
]

FAULTS: dict[str, list[tuple[str, int]]] = {
    "open": [*_fails(errno.EIO, errno.EMFILE), *_INTERRUPTED, *_KILLED],
    "write": [
        *_BAD_DISK, *_INTERRUPTED, ("short", 0), ("torn-fail", errno.ENOSPC),
        ("torn-fail", errno.EIO), ("torn-kill", 0), ("fail-then-kill", errno.EIO), *_KILLED,
    ],
    "read": [*_BAD_DISK, *_INTERRUPTED, ("short", 0)],
    "fsync": [*_FLUSH, *_INTERRUPTED],
    "fdatasync": [*_FLUSH, *_INTERRUPTED],
    "syncfs": _FLUSH,
    "truncate": [*_fails(errno.EIO), *_INTERRUPTED, *_KILLED],
    "allocate": [*_fails(errno.EIO, errno.EOPNOTSUPP), *_INTERRUPTED, *_KILLED],
    "rename": [*_fails(errno.EIO), ("fail-then-kill", errno.EIO), *_KILLED],
    "link": [*_fails(errno.EIO, errno.EPERM), *_KILLED],
    "unlink": [*_fails(errno.EIO), ("fail-then-kill", errno.EIO), *_KILLED],
    "rmdir": [*_fails(errno.EIO), *_KILLED],
    "mkdir": [*_fails(errno.EIO), *_KILLED],
    "mkfifo": [*_fails(errno.EPERM), *_KILLED],
    "flock": [*_fails(errno.ENOLCK), *_INTERRUPTED, *_KILLED],
    "space": [("fail-stuck", errno.ENOSPC), *_fails(errno.ENOSPC)],
}  # fmt: skip
"""What may happen to each kind of call. "space" is every call that may need room."""


_CODES = {
    "open": "EMFILE ENFILE ENOMEM EIO EINTR EACCES ENOSPC EDQUOT ESTALE",
    "list": "EMFILE ENFILE ENOMEM EIO EACCES ESTALE",
    "entry": "ENOMEM EIO ESTALE",
    "stat": "ENOMEM EIO EACCES ESTALE",
    "statfs": "ENOMEM EIO EINTR EACCES ESTALE",
    "read": "ENOMEM EIO EINTR ESTALE",
    "write": "ENOMEM EIO EINTR EACCES ENOSPC EDQUOT ESTALE",
    "fsync": "EIO ENOSPC EDQUOT ESTALE",
    "fdatasync": "EIO ENOSPC EDQUOT ESTALE",
    "syncfs": "EIO ENOSPC EDQUOT ESTALE",
    "truncate": "EIO EINTR EACCES ENOSPC EDQUOT ESTALE",
    "allocate": "EIO EINTR ENOSPC EDQUOT ESTALE",
    "rename": "ENOMEM EIO EACCES ENOSPC EDQUOT ESTALE",
    "link": "ENOMEM EIO EACCES ENOSPC EDQUOT ESTALE",
    "unlink": "ENOMEM EIO EACCES ENOSPC EDQUOT ESTALE",
    "rmdir": "ENOMEM EIO EACCES ESTALE",
    "mkdir": "ENOMEM EIO EACCES ENOSPC EDQUOT ESTALE",
    "mkfifo": "ENOMEM EIO EACCES ENOSPC EDQUOT ESTALE",
    "flock": "ENOMEM EIO EINTR ENOLCK ESTALE",
    "fstat": "ENOMEM EIO ESTALE",
    "dup": "EMFILE ENOMEM",
    "seek": "ENOMEM EIO",
    "close": "EIO ENOSPC EDQUOT",
    "readlink": "ENOMEM EACCES",
    "thread": "EAGAIN",
}  # fmt: skip
SWEEP: dict[str, list[tuple[str, int]]] = {
    kind: [(action, getattr(errno, name)) for name in names.split() for action in ("fail", "fail-stuck")]
    for kind, names in _CODES.items()
}
"""Every call with every error that the kernel may return for it, once and for good. A call that always fails with
EINTR is not among what a kernel does: Python would try for ever."""
for _plans in SWEEP.values():
    if ("fail-stuck", errno.EINTR) in _plans:
        _plans.remove(("fail-stuck", errno.EINTR))


@dataclass(frozen=True, order=True)
class Plan:
    """The n-th call of a kind, and what happens to it. `n` 0 counts only."""

    kind: str = "open"
    n: int = 0
    action: str = "pass"
    code: int = 0

    def __str__(self) -> str:
        name = f" {errno.errorcode[self.code]}" if self.code else ""
        return f"{self.kind} {self.n}: {self.action}{name}"

    @property
    def numbers(self) -> tuple[int, int, int, int]:
        """The plan as the shim takes it."""
        return KINDS.index(self.kind), self.n, ACTIONS.index(self.action), self.code

    @property
    def kills(self) -> bool:
        """Whether the process does not live to tell."""
        return self.action in KILLS

    @property
    def is_once(self) -> bool:
        """Whether the disk is well again after it."""
        return self.action != "fail-stuck"


def plans(counts: dict[str, int], faults: dict[str, list[tuple[str, int]]] | None = None) -> list[Plan]:
    """Return every plan for a run that makes so many calls of each kind."""
    faults = FAULTS if faults is None else faults
    return [
        Plan(kind, n, action, code)
        for kind in KINDS
        for n in range(1, counts.get(kind, 0) + 1)
        for action, code in faults.get(kind, ())
    ]


def compiler() -> str | None:
    """Return the C compiler, if there is one."""
    return shutil.which(os.environ.get("CC", "cc")) or shutil.which("gcc")


def missing() -> str | None:
    """Say what this machine lacks for the shim."""
    if not sys.platform.startswith("linux"):
        return "the shim makes Linux system calls"
    return None if compiler() else "no C compiler for the shim"


def build(where: Path) -> Path:
    """Compile the shim into a directory."""
    made = where / "shim.so"
    command = [compiler() or "cc", "-O1", "-shared", "-fPIC", "-o", str(made), str(SOURCE), "-ldl"]
    subprocess.run(command, check=True, capture_output=True)
    return made


def environment(shim: Path) -> dict[str, str]:
    """Return the environment of a process with the shim in it."""
    repo = Path(__file__).parents[2]
    return {**os.environ, "LD_PRELOAD": str(shim), "PYTHONPATH": str(repo), "PYTHONHASHSEED": "0"}


class Shim:
    """The shim of this process, which was started with it."""

    def __init__(self) -> None:
        self._lib = ctypes.CDLL(None)

    def arm(self, prefix: str, plan: Plan) -> None:
        """Count from now on, and let the plan happen."""
        self._lib.shim_arm(os.fsencode(prefix), *plan.numbers)

    def disarm(self) -> None:
        """Let everything pass again."""
        self._lib.shim_disarm()

    @property
    def counts(self) -> dict[str, int]:
        """How many calls of each kind were made since it was armed."""
        return {kind: self._lib.shim_count(i) for i, kind in enumerate(KINDS)}

    @property
    def fired(self) -> bool:
        """Whether the call that was meant was made."""
        return bool(self._lib.shim_fired())
