"""The far end of a backup on another machine (sets/remote.py): `filewheel copy-server PATH` on stdin and stdout.

It opens the wheel in PATH, or makes one, and does what the near end asks: calls of a disk, and of a `Target`. The
near end takes the backup's lock through it. It ends when stdin does, or when nothing comes for 90 seconds: then its
locks are free, and a promotion here does not wait for a machine that is lost.
Invariant: no name that comes over the connection leads out of the wheel, and no number is of a file that it did not
open.
"""

from __future__ import annotations

import logging
import re
import select
from collections.abc import Callable
from io import FileIO
from typing import Any

import msgpack

from filewheel.checks import check_path
from filewheel.disk.directory import Directory, create_directory, open_directory
from filewheel.disk.disk import SYSTEM
from filewheel.env import Env
from filewheel.errors import FilewheelError, NoWheel
from filewheel.sets.absorb import clear
from filewheel.sets.link import check_office
from filewheel.sets.members import stand_alone
from filewheel.sets.remote import GREETING, MESSAGE_BYTES_MAX, PROTOCOL, framed, packed_error
from filewheel.sets.target import Target, Tick

log = logging.getLogger(__name__)

SILENCE_S = 90.0
"""Longer than the pause between two ticks may be."""
_HEAD_BYTES = 1 << 16
_NAME = re.compile(r"(?:[A-Za-z0-9_.@-]+(?:/[A-Za-z0-9_.@-]+){0,2})?")
_NAMES = {
    **dict.fromkeys(("open", "sync_dir", "listdir", "mkdir", "rmdir", "unlink", "identity", "put", "has_frames"), (0,)),
    **dict.fromkeys(("rename", "link"), (0, 1)),
    "is_named": (1,),
}
"""Which arguments of a call are names."""
_OF_FILES = {
    *("close", "pread", "pwrite", "truncate", "allocate", "size", "is_removed", "is_named", "data_from", "fdatasync"),
    *("lock", "unlock", "is_free"),
}
"""The calls of which the first argument is the number of an open file."""
_OF_DISK = (
    _OF_FILES
    | {"sync_dir", "sync_all", "listdir", "mkdir", "rmdir", "rename", "link", "unlink", "identity"}
    | {"free_bytes", "free_files"}
) - {"close", "lock"}
_OF_TARGET = frozenset(("put", "beat", "begin", "segments", "has_frames"))


class CopyServer:
    """One connection. Not thread-safe. Close it."""

    def __init__(self, path: str, *, env: Env = SYSTEM) -> None:
        """Serve the copy at this path, which need not be there."""
        self._path = check_path(path)
        self._env = env
        self._directory: Directory | None = None
        self._target: Target | None = None
        self._fds: set[int] = set()
        self._failed: BaseException | None = None

    def handle(self, message: bytes) -> bytes | None:
        """Do what a message asks; return the answer, framed, or None when there is none."""
        number, name, *args = msgpack.unpackb(message, strict_map_key=False)
        value: object = None
        if self._failed is None:
            try:
                value = self._do(name, args)
            except Exception as exc:
                if not isinstance(exc, (FilewheelError, OSError)):
                    log.exception("%s: a call failed", self._path)
                if not number:
                    self._failed = exc
                else:
                    return framed([number, False, packed_error(exc)])
        if not number:
            return None
        return framed([number, True, value] if self._failed is None else [number, False, packed_error(self._failed)])

    def _do(self, name: str, args: list[Any]) -> object:
        for at in _NAMES.get(name, ()):
            _check_name(args[at])
        if name in _OF_FILES and args[0] not in self._fds:
            raise NoWheel("no such open file", path=self._path)
        if name in _OF_DISK:
            found: object = getattr(self._here.disk, name)(*args)
            return found
        if name in _OF_TARGET:
            return getattr(self._there, name)(*args)
        call: Callable[..., object] | None = getattr(self, f"_call_{name}", None)
        if call is None:
            raise NoWheel(f"this version does not know the call {name!r}", path=self._path)
        return call(*args)

    @property
    def _here(self) -> Directory:
        if self._directory is None:
            self._directory = open_directory(self._path, write=True, env=self._env)
        return self._directory

    @property
    def _there(self) -> Target:
        if self._target is None:
            raise NoWheel("the copy was not started", path=self._path)
        return self._target

    # -- the wheel ---------------------------------------------------------------------------------------------

    def _call_make(self, settings: dict[str, Any], force: bool) -> None:
        create_directory(self._path, **settings, now_us=self._env.clock.now_us(), force=force, env=self._env)

    def _call_wheel(self) -> tuple[bytes, list[str]]:
        return self._here.settings.to_json(), self._here.notes

    def _call_leave(self, wheel: str, set_: str) -> None:
        stand_alone(self._path, wheel, set_, self._env)

    def _call_clear(self) -> None:
        clear(self._here)

    def _call_open(self, name: str, mode: str) -> tuple[int, bytes | None]:
        disk = self._here.disk
        fd = disk.open(name, mode)
        self._fds.add(fd)
        head = disk.pread(fd, _HEAD_BYTES + 1, 0) if mode == "r" else None
        return fd, head if head is not None and len(head) <= _HEAD_BYTES else None

    def _call_close(self, fd: int) -> None:
        self._fds.discard(fd)
        self._here.disk.close(fd)

    def _call_lock(self, fd: int, wait: bool) -> bool:
        return self._here.disk.lock(fd, wait=wait)

    # -- the copy ----------------------------------------------------------------------------------------------

    def _call_start(self, set_: str, epoch: int) -> list[object]:
        directory = self._here
        self._target = Target(directory, lambda: check_office(directory, set_, epoch))
        held = self._target.start()
        return [held.checkpoint, held.files, held.journals]

    def _call_files(self) -> dict[str, int]:
        return self._there.files(self._here.checkpoint())

    def _call_digests(self, parts: list[Any]) -> list[bytes | None]:
        for name, _, _ in parts:
            _check_name(name)
        return self._there.digests(parts)

    def _call_add(self, data: bytes) -> None:
        self._there.add(_tick(data))

    def _call_commit(self, data: bytes) -> None:
        self._there.commit(_tick(data))

    def _call_end(self) -> None:
        if self._target is not None:
            self._target.close()
            self._target = None

    def close(self) -> None:
        """Let go of the copy."""
        self._call_end()
        if self._directory is not None:
            for fd in self._fds:
                self._directory.disk.close(fd)
            self._fds.clear()
            self._directory.disk.release()
            self._directory = None


def _check_name(name: object) -> None:
    if not isinstance(name, str) or not _NAME.fullmatch(name) or {".", ".."} & set(name.split("/")):
        raise NoWheel(f"no name in a wheel: {name!r}")


def _tick(data: bytes) -> Tick:
    tick = Tick.unpack(data)
    for name in (*(p[0] for p in tick.parts), *(c[0] for c in tick.cuts), *(s[0] for s in tick.small), *tick.gone):
        _check_name(name)
    return tick


def serve_copy(path: str, inward: FileIO, outward: FileIO, *, version: str, env: Env = SYSTEM) -> None:
    """Serve the copy at `path` over these streams, until `inward` ends or is silent for 90 seconds.

    `version` is that of filewheel, for the greeting. Raises OSError when a stream fails.
    """
    _write(outward, GREETING + f"{PROTOCOL} {version}\n".encode())
    server = CopyServer(path, env=env)
    try:
        while (message := _next(inward)) is not None:
            answer = server.handle(message)
            if answer is not None:
                _write(outward, answer)
    finally:
        server.close()


def _next(inward: FileIO) -> bytes | None:
    """Return the next message; None at the end, and after a silence."""
    head = _bytes(inward, 4)
    size = int.from_bytes(head, "big")
    if len(head) < 4 or size > MESSAGE_BYTES_MAX:
        return None
    data = _bytes(inward, size)
    return data if len(data) == size else None


def _bytes(inward: FileIO, size: int) -> bytes:
    found = bytearray()
    waiting = select.poll()
    waiting.register(inward, select.POLLIN)
    while len(found) < size:
        if not waiting.poll(SILENCE_S * 1000):
            log.warning("nothing came for %d s: the connection is given up", SILENCE_S)
            break
        data = inward.read(size - len(found))
        if not data:
            break
        found += data
    return bytes(found)


def _write(outward: FileIO, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[outward.write(left) :]
