"""Things that somebody else put into a wheel's directories, and proof that they are as they were.

Names near the valid ones and far from them, as files, links, pipes, sockets and directories; valid names of what is no
regular file; holes of a terabyte. Nothing here is filewheel's by the rules of filewheel/format/layout.py.
Invariant: what is put down is given by the random generator alone, and never takes a name that the wheel needs.
"""

from __future__ import annotations

import contextlib
import errno
import os
import random
import socket
import stat
from pathlib import Path

SPARSE_BYTES = 1 << 40
TRAP = b"a link was followed"
ODD = [
    b"\n", b"a\nb.log", b"\x1b[2J\x1b]0;x\x07", b"\xff\xfe", b"\xc3.lap", b"x" * 255, b"1" * 255, b" ", b"-rf", b"*",
    "\u202egnp.lap".encode(), b"\r\x08", b"...", b".hidden", b"%s%n", b"lost+found", b".DS_Store", b"core",
]  # fmt: skip
NEAR = {
    "": [
        b"wheel.json~", b"WHEEL.JSON", b"wheel.json.copy.copy", b"checkpoint.1", b"checkpoint.old.old", b"keeper.lock2",
        b"hint.", b"ballast2", b"journal2", b"Laps", b"quarantine.bak", b"checkpoint\n",
    ],
    "journal": [
        b"AAAAAAAA-1.log", b"AAAAAAAA-000000.log", b"aaaaaaaa-000001.log", b"AAAAAAAI-000001.log", b"A-000001.log",
        b"AAAAAAAA-000001.log~", b"AAAAAAAA-0000000000001.log", b"AAAAAAAA-000001.log\n", b"AAAAAAAA-+00001.log",
        b"AAAAAAAA-0000001.log", b"AAAAAAAA-000001.tmp", b".AAAAAAAA-1.tmp",
        "AAAAAAAA-00000\u0661.log".encode(),
    ],
    "laps": [
        b"01.lap", b"-1.lap", b"1.lap~", b"1.LAP", b"1.5.lap", b"1.lap\n", b"999999999999.lap", b"9999999999999.lap",
        b"288000000000.lap", b"999999999999", b"01", b"1e3", b"5.slot", b"0x10.lap", "\u0665.lap".encode(),
    ],
    "quarantine": [b"x.json", b"laps_1.lap@0.json", b"@.bin", b".json", b"a.json\n", b"{}.json"],
}  # fmt: skip
NEAR_SLOTS = [
    b"5.slot", b"01.slot", b"x.slot", b"-5.slot", b"999999999999.slot", b"288000000000.slot", b"1.slot~", b"1.slot\n",
    b"1.lap",
]  # fmt: skip


class Clutter:
    """What was put into one wheel."""

    def __init__(self, wheel: Path, outside: Path, rng: random.Random) -> None:
        self.wheel = os.fsencode(wheel)
        self.outside = os.fsencode(outside)
        self.rng = rng
        self.placed: dict[bytes, object] = {}
        """path → how it was (`looks`)."""
        self.skipped: set[str] = set()
        os.makedirs(self.outside + b"/dir", exist_ok=True)
        for name in (b"canary", b"dir/5.slot"):
            Path(os.fsdecode(self.outside + b"/" + name)).write_bytes(TRAP)

    def scatter(self, directories: dict[str, list[bytes]], count: int) -> None:
        """Put up to `count` things into directories, each with the valid names that are free in it."""
        for _ in range(count):
            directory = self.rng.choice(list(directories))
            near = NEAR.get(directory, NEAR_SLOTS)
            how = self.rng.random()
            if how < 0.4:
                self.place(directory, self._varied(self.rng.choice([*near, *ODD])), valid=False)
            elif how < 0.7:
                self.place(directory, self.rng.choice([*near, *ODD]), valid=False)
            elif directories[directory]:
                self.place(directory, self.rng.choice(directories[directory]), valid=True)
        for path in self.placed:
            self.placed[path] = looks(path)

    def _varied(self, name: bytes) -> bytes:
        """Return a name that is made longer, and so is valid nowhere."""
        return (self.rng.choice([b"#", b"~", b"\xff", b"\n"]) + b"%d" % self.rng.randrange(10**6) + name)[:255]

    def place(self, directory: str, name: bytes, *, valid: bool) -> None:
        """Put something there, unless there is something. Under a valid name, something that is no regular file."""
        path = b"/".join(p for p in (self.wheel, directory.encode(), name) if p)
        if os.path.lexists(path):
            return
        kinds = [self._link, self._link, self._pipe, self._socket, self._directory]
        if not valid:
            kinds += [self._file, self._file, self._hard_link, self._sparse]
        self.rng.choice(kinds)(path)
        if os.path.lexists(path):
            self.placed[path] = None

    def _file(self, path: bytes) -> None:
        with open(path, "wb") as file:
            file.write(self.rng.choice([b"", b"\xf5FW1" * 50, bytes(4096), TRAP, b"[" * 5000]))

    def _link(self, path: bytes) -> None:
        targets = [
            b"/dev/zero",
            b"/nowhere/at/all",
            b".",
            b"..",
            path,
            self.outside + b"/canary",
            self.outside + b"/dir",
        ]
        os.symlink(self.rng.choice(targets), path)

    def _hard_link(self, path: bytes) -> None:
        os.link(self.outside + b"/canary", path)

    def _pipe(self, path: bytes) -> None:
        os.mkfifo(path)

    def _socket(self, path: bytes) -> None:
        # A socket's address is short: it is made nearby and moved.
        with socket.socket(socket.AF_UNIX) as made:
            short = self.outside + b"/s"
            made.bind(short)
            os.rename(short, path)

    def _directory(self, path: bytes) -> None:
        os.mkdir(path)
        with open(path + b"/inside", "wb") as file:
            file.write(TRAP)

    def _sparse(self, path: bytes) -> None:
        with open(path, "wb") as file:
            try:
                os.ftruncate(file.fileno(), SPARSE_BYTES)
            except OSError as exc:
                self.skipped.add(f"no file of a terabyte here: {errno.errorcode.get(exc.errno or 0)}")

    def changed(self) -> list[str]:
        """Say what is not as it was put down."""
        wrong = []
        for path, before in self.placed.items():
            now = looks(path)
            if now != before:
                wrong.append(f"{path[len(self.wheel) :]!r} was {before}, is {now}")
        for name in (b"canary", b"dir/5.slot"):
            with open(self.outside + b"/" + name, "rb") as file:
                if file.read() != TRAP:
                    wrong.append(f"{name!r} outside was written to")
        if sorted(os.listdir(self.outside)) != [b"canary", b"dir"] or os.listdir(self.outside + b"/dir") != [b"5.slot"]:
            wrong.append("something was made or removed outside")
        return wrong


def looks(path: bytes) -> object:
    """Return everything about a thing that may not change."""
    try:
        info = os.lstat(path)
    except OSError as exc:
        return exc.errno
    inside: object = None
    if stat.S_ISLNK(info.st_mode):
        inside = os.readlink(path)
    elif stat.S_ISDIR(info.st_mode):
        inside = sorted(os.listdir(path))
    elif stat.S_ISREG(info.st_mode) and info.st_size < SPARSE_BYTES:
        with contextlib.suppress(OSError), open(path, "rb") as file:
            inside = file.read()
    return stat.S_IFMT(info.st_mode), info.st_ino, info.st_size, info.st_mtime_ns, inside
