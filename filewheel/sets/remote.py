"""A backup on another machine: its directory and its target, at the far end of an ssh connection.

`ssh host filewheel copy-server PATH` runs there and speaks on its stdin and stdout: nothing listens on a port, and ssh
says who may. The far end runs the ordinary `Target` (target.py), with the locks and the flushes of its own disk. What
else a link needs of the backup (its roster, its forks, frames that were lost here) it reads through a `RemoteDisk`,
so no other code knows of machines.

A call that gives nothing back is not answered, and not waited for: a tick is one round trip, whatever it brings. If
such a call fails, so does the next one that is answered, and all that follow.
Invariant: after a commit that returned, the tick is durable on the far disk. A connection that is lost, or does not
answer in time, ends in NoWheel, and is not used again.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import shlex
import subprocess
from collections.abc import Callable, Iterator
from typing import Any, Protocol, TypeVar
from urllib.parse import parse_qsl, unquote, urlsplit

import msgpack

from filewheel import errors
from filewheel.checks import scheme_of
from filewheel.disk.checkpoint import Checkpoint
from filewheel.disk.directory import Directory, create_directory, open_directory
from filewheel.disk.disk import ForeignFile
from filewheel.env import SYSTEM_CLOCK, Env, pause
from filewheel.errors import BadArgument, FilewheelError, NoWheel
from filewheel.format.settings import parse_settings
from filewheel.message import US_PER_S
from filewheel.native.compiled import Pen
from filewheel.sets.absorb import clear
from filewheel.sets.target import Held, Part, Tick, differ

T = TypeVar("T")

PROTOCOL = 1
GREETING = b"filewheel copy-server "
"""The far end begins with a line of this, the version of the protocol, and that of filewheel."""
ANSWER_S = 20.0
"""The far end answers within this time, when nothing is under way to it."""
_LINE_BYTES_S, _UNDER_WAY_BYTES = 100_000, 4 << 20
"""A slow line, and how much ssh and the system take before it has passed."""
_DISK_BYTES_S = 8 << 20
"""A slow disk, which a commit flushes."""
LONG_S = 600.0
"""The same for a call that may read all of the copy."""
MESSAGE_BYTES_MAX = 1 << 30
_SEND_BYTES = 1 << 18
_STDERR_BYTES = 2000
_PARTS_AT_ONCE = 512
_HOST = re.compile(r"[A-Za-z0-9._][A-Za-z0-9._-]*|\[[0-9A-Fa-f:.]+\]")
_USER = re.compile(r"[A-Za-z0-9._][A-Za-z0-9._@-]*")
_NOT_FOUND = 127
"""The exit code of a shell that did not find the program."""
_OPTIONS = ("BatchMode=yes", "ServerAliveInterval=5", "ServerAliveCountMax=3")


# -- the command ----------------------------------------------------------------------------------------------


def ssh_command(url: str) -> list[str]:
    """Return the command that connects to `ssh://[user@]host[:port]/path[?command=PROGRAM]`.

    The variable FILEWHEEL_SSH has another program than `ssh`, with options of its own. Raises BadArgument.
    """
    wrong = BadArgument(f"not a place of a backup: {url}", hint="ssh://[user@]host[:port]/path[?command=PROGRAM]")
    try:
        parts = urlsplit(url)
        port, options = parts.port, dict(parse_qsl(parts.query, strict_parsing=bool(parts.query)))
    except ValueError:
        raise wrong from None
    user, at, host = parts.netloc.rpartition("@")
    host = host.removesuffix(f":{port}")
    path = unquote(parts.path)
    if not _HOST.fullmatch(host) or (at and not _USER.fullmatch(user)) or options.keys() - {"command"}:
        raise wrong
    if path.strip("/") in ("", "~") or "\0" in path or parts.fragment:
        raise wrong
    command = shlex.split(os.environ.get("FILEWHEEL_SSH") or "ssh")
    for option in _OPTIONS:
        command += ["-o", option]
    if port is not None:
        command += ["-p", str(port)]
    # The shell of the far end reads this: `~` is the home directory, in which it begins.
    there = f"{options.get('command', 'filewheel')} copy-server {shlex.quote(path.removeprefix('/~/'))}"
    return [*command, f"{user}{at}{host.strip('[]')}", there]


# -- the connection -------------------------------------------------------------------------------------------


class Peer(Protocol):
    """One end of a connection, which carries messages in order."""

    def send(self, data: bytes, wait_s: float) -> None:
        """Send some messages. Raises NoWheel."""

    def receive(self, wait_s: float) -> bytes:
        """Return the next message. Raises NoWheel."""

    def close(self) -> None:
        """End the connection; may be called from another thread."""


def framed(message: object) -> bytes:
    """Return a message as it is sent: its length, and its bytes."""
    data: bytes = msgpack.packb(message)
    return len(data).to_bytes(4, "big") + data


class SshPeer:
    """The process of ssh. Not thread-safe, except for `close`."""

    def __init__(self, url: str) -> None:
        """Connect, and read the greeting. Raises NoWheel, BadArgument."""
        self._url = url
        self._said = b""
        self._read = bytearray()
        command = ssh_command(url)
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                start_new_session=True,  # a Ctrl-C is for this process: it finishes its tick
            )
        except OSError as exc:
            raise NoWheel(
                f"{command[0]} cannot be started ({exc.strerror})", path=url, hint="install ssh, or set FILEWHEEL_SSH"
            ) from exc
        process: Any = self._process
        self._in, self._out, self._err = process.stdin, process.stdout, process.stderr
        for stream in (self._in, self._out, self._err):
            os.set_blocking(stream.fileno(), False)
        try:
            self._greet()
        except BaseException:
            self.close()
            raise

    def _greet(self) -> None:
        line = self._take(lambda: self._read.find(b"\n") + 1, ANSWER_S)
        if not line.startswith(GREETING):
            raise NoWheel(
                f"the far end says {line[:80]!r} in place of a greeting",
                path=self._url,
                hint="its shell prints something to stdout: let it do so on a terminal only",
            )
        protocol, _, version = line[len(GREETING) :].decode("ascii", "replace").strip().partition(" ")
        if protocol != str(PROTOCOL):
            raise NoWheel(
                f"filewheel {version} over there speaks version {protocol} of the protocol, and this one {PROTOCOL}",
                path=self._url,
                hint="install the same version at both ends",
            )

    def send(self, data: bytes, wait_s: float) -> None:
        """Send some messages. Raises NoWheel when the connection is lost, or takes nothing for this long."""
        left = memoryview(data)
        while left:
            try:
                left = left[self._in.write(left) or 0 :]
            except (BrokenPipeError, ValueError):
                raise self._lost() from None
            if left:
                self._wait(SYSTEM_CLOCK.steady_us() + round(wait_s * US_PER_S), writes=True)

    def receive(self, wait_s: float) -> bytes:
        """Return the next message. Raises NoWheel when the connection is lost, or nothing comes for this long."""
        size = int.from_bytes(self._take(lambda: 4, wait_s), "big")
        if size > MESSAGE_BYTES_MAX:
            raise NoWheel("the far end sent what is no message", path=self._url, hint="look at its log")
        return self._take(lambda: size, wait_s)

    def _take(self, size: Callable[[], int], wait_s: float) -> bytes:
        """Return the next bytes, once as many are there as `size` says; 0 is not known yet."""
        end_us = SYSTEM_CLOCK.steady_us() + round(wait_s * US_PER_S)
        while not 0 < size() <= len(self._read):
            self._wait(end_us)
        taken = bytes(self._read[: size()])
        del self._read[: len(taken)]
        return taken

    def _wait(self, end_us: int, *, writes: bool = False) -> None:
        """Wait until the far end says something, or takes more, and read what it says."""
        polled = select.poll()
        polled.register(self._out, select.POLLIN)
        polled.register(self._err, select.POLLIN)
        if writes:
            polled.register(self._in, select.POLLOUT)
        left_us = end_us - SYSTEM_CLOCK.steady_us()
        if left_us <= 0 or not (ready := dict(polled.poll(left_us // 1000 + 1))):
            raise NoWheel(
                "the far end does not answer: it, its disk or the connection is frozen, or very slow",
                path=self._url,
                hint="look at that machine; the replicator tries again by itself",
            )
        if self._err.fileno() in ready:
            self._hear()
        if self._out.fileno() in ready:
            data = self._out.read(_SEND_BYTES)
            if data == b"":
                raise self._lost()
            self._read += data or b""

    def _hear(self) -> None:
        self._said = (self._said + (self._err.read(_SEND_BYTES) or b""))[-_STDERR_BYTES:]

    def _lost(self) -> NoWheel:
        """Return the error of a connection that has ended, with what ssh says of it."""
        try:
            code = self._process.wait(1)
        except subprocess.TimeoutExpired:
            code = None
        self._hear()
        lines = [line for line in self._said.decode(errors="replace").splitlines() if line.strip()]
        said = " ".join(lines[-3:])
        if code == _NOT_FOUND:
            what, hint = "the program was not found over there", "name it: ssh://host/path?command=/path/to/filewheel"
        elif code == 255:
            what = "ssh cannot connect, or lost the connection"
            hint = "`ssh -o BatchMode=yes HOST true` has to work: a known host key, and a key without a question"
        else:
            what, hint = "the connection was lost", "look at that machine; the replicator tries again by itself"
        return NoWheel(f"{what} ({said})" if said else what, path=self._url, hint=hint)

    def close(self) -> None:
        """End ssh, and with it the connection."""
        self._process.kill()
        self._process.wait()
        for stream in (self._in, self._out, self._err):
            stream.close()


class Channel:
    """Calls to the far end, numbered. Not thread-safe."""

    def __init__(self, peer: Peer, url: str) -> None:
        self._peer = peer
        self._url = url
        self._number = 0
        self._unsent: list[bytes] = []
        self._unsent_bytes = self._sent_bytes = 0
        self._broken: FilewheelError | None = None

    def cast(self, name: str, *args: object) -> None:
        """Call something that gives nothing back: an error, also of the connection, is raised by the next `call`."""
        if self._broken is None:
            self._add([0, name, *args])
            if self._unsent_bytes >= _SEND_BYTES:
                with contextlib.suppress(NoWheel):
                    self._send()

    def call(self, name: str, *args: object, wait_s: float = ANSWER_S) -> Any:
        """Call something, and return the answer. Raises NoWheel, and the errors of the far end."""
        self.check()
        self._number += 1
        self._add([self._number, name, *args])
        self._send()
        wait_s += min(self._sent_bytes, _UNDER_WAY_BYTES) / _LINE_BYTES_S + self._sent_bytes / _DISK_BYTES_S
        self._sent_bytes = 0
        answer = self._tried(lambda: self._peer.receive(wait_s))
        number, is_done, value = msgpack.unpackb(answer, strict_map_key=False)
        if number != self._number:
            raise self._break(NoWheel("the far end answered another call", path=self._url, hint="look at its log"))
        if not is_done:
            raise raised_there(value, self._url)
        return value

    def check(self) -> None:
        """Raise NoWheel when the connection was lost."""
        if self._broken is not None:
            raise errors.anew(self._broken)

    def _add(self, message: object) -> None:
        data = framed(message)
        self._unsent.append(data)
        self._unsent_bytes += len(data)

    def _send(self) -> None:
        data = b"".join(self._unsent)
        self._unsent, self._unsent_bytes = [], 0
        self._sent_bytes += len(data)
        self._tried(lambda: self._peer.send(data, ANSWER_S))

    def _tried(self, act: Callable[[], T]) -> T:
        try:
            return act()
        except FilewheelError as exc:
            raise self._break(exc) from None
        except BaseException:  # an interrupt (Ctrl-C): nobody knows which answer is next
            self._break(NoWheel("the call was interrupted", path=self._url))
            raise

    def _break(self, exc: FilewheelError) -> FilewheelError:
        self._broken = errors.anew(exc)
        return exc

    @property
    def is_broken(self) -> bool:
        """Whether the connection was lost, and is of no more use."""
        return self._broken is not None

    def close(self) -> None:
        """End the connection: the far end lets go of its locks."""
        self._peer.close()


def packed_error(exc: BaseException) -> list[Any]:
    """Return an error as it is sent."""
    if isinstance(exc, OSError):
        return ["OSError", exc.errno, exc.strerror or str(exc), isinstance(exc, ForeignFile)]
    if isinstance(exc, FilewheelError):
        plain = (str, int, float, bool, type(None))
        return [type(exc).__name__, {k: v for k, v in vars(exc).items() if isinstance(v, plain)}]
    return ["FilewheelError", {"what": f"an error of the far end: {exc!r}"}]


def raised_there(error: list[Any], url: str) -> BaseException:
    """Return the error that the far end raised; paths in it begin with the host."""
    name, *rest = error
    if name == "OSError":
        code, says, is_foreign = rest
        return (ForeignFile if is_foreign else OSError)(code, says)
    kind = getattr(errors, name, None)
    if not isinstance(kind, type) or not issubclass(kind, FilewheelError):
        kind = FilewheelError
    made: FilewheelError = kind.__new__(kind)
    FilewheelError.__init__(made, rest[0]["what"])
    vars(made).update(rest[0])
    if made.path:
        made.path = f"ssh://{urlsplit(url).netloc}{made.path}"
    return made


# -- the far directory ----------------------------------------------------------------------------------------


class RemoteDisk:
    """The far disk, as far as a link needs it. Each call is a round trip, except for writes."""

    def __init__(self, channel: Channel, path: str) -> None:
        self.path = path
        self.channel = channel
        self._heads: dict[int, bytes] = {}
        """Of files that were opened to be read: the whole of a small one."""

    def open(self, name: str, mode: str) -> int:
        fd, head = self.channel.call("open", name, mode)
        if head is not None:
            self._heads[fd] = head
        return int(fd)

    def close(self, fd: int) -> None:
        self._heads.pop(fd, None)
        self.channel.cast("close", fd)

    def pread(self, fd: int, size: int, offset: int) -> bytes:
        head = self._heads.get(fd)
        found: bytes = self.channel.call("pread", fd, size, offset) if head is None else head[offset : offset + size]
        return found

    def pwrite(self, fd: int, data: bytes, offset: int) -> None:
        self.channel.cast("pwrite", fd, data, offset)

    def pen(
        self, fd: int, low: bytes, seq: int, seq_end: int, seed: int, offset: int, end: int, number: int, synced: int
    ) -> Pen | None:
        return None

    def truncate(self, fd: int, size: int) -> None:
        self.channel.cast("truncate", fd, size)

    def allocate(self, fd: int, size: int) -> None:
        self.channel.call("allocate", fd, size)

    def size(self, fd: int) -> int:
        head = self._heads.get(fd)
        return int(self.channel.call("size", fd)) if head is None else len(head)

    def is_removed(self, fd: int) -> bool:
        return bool(self.channel.call("is_removed", fd))

    def is_named(self, fd: int, name: str) -> bool:
        return bool(self.channel.call("is_named", fd, name))

    def data_from(self, fd: int, offset: int) -> int:
        return int(self.channel.call("data_from", fd, offset))

    def fdatasync(self, fd: int) -> None:
        self.channel.call("fdatasync", fd)

    def sync_dir(self, name: str) -> None:
        self.channel.call("sync_dir", name)

    def sync_all(self) -> None:
        self.channel.call("sync_all", wait_s=LONG_S)

    def listdir(self, name: str) -> list[str]:
        return list(self.channel.call("listdir", name))

    def mkdir(self, name: str) -> None:
        self.channel.call("mkdir", name)

    def rmdir(self, name: str) -> None:
        self.channel.call("rmdir", name)

    def rename(self, old: str, new: str) -> None:
        self.channel.call("rename", old, new)

    def link(self, old: str, new: str) -> None:
        self.channel.call("link", old, new)

    def unlink(self, name: str) -> None:
        self.channel.call("unlink", name)

    def identity(self, name: str) -> tuple[int, int, int] | None:
        found = self.channel.call("identity", name)
        return None if found is None else (found[0], found[1], found[2])

    def lock(self, fd: int, *, wait: bool) -> bool:
        return bool(self.channel.call("lock", fd, wait))

    def unlock(self, fd: int) -> None:
        self.channel.call("unlock", fd)

    def is_free(self, fd: int) -> bool:
        return bool(self.channel.call("is_free", fd))

    def open_hints(self, name: str) -> int | None:
        return None

    def open_hint(self, name: str) -> int | None:
        return None

    def send_hint(self, fd: int) -> bool:
        return False

    def wait_hint(self, fd: int | None, timeout_s: float) -> bool:
        pause(timeout_s)
        return False

    def free_bytes(self) -> int:
        return int(self.channel.call("free_bytes"))

    def free_files(self) -> int | None:
        found = self.channel.call("free_files")
        return None if found is None else int(found)

    def release(self) -> None:
        self.channel.close()


class RemoteTarget:
    """A copy at the far end (`Target`). The caller holds its lock, through the same connection. Not thread-safe."""

    gives_back = True

    def __init__(self, directory: Directory, disk: RemoteDisk, set_: str, epoch: int) -> None:
        """Before each tick is written, the far end checks that it is a backup of this set, in this epoch."""
        self.dir = directory
        self._channel = disk.channel
        self._office = set_, epoch

    def start(self) -> Held:
        """Replay the log, and return what the copy has. Raises Damaged, NoWheel, OSError."""
        return Held(*self._channel.call("start", *self._office, wait_s=LONG_S))

    def files(self, checkpoint: Checkpoint) -> dict[str, int]:
        """Return the lap and slot files of the copy's checkpoint, with what is there of each."""
        found: dict[str, int] = self._channel.call("files")
        return found

    @property
    def place(self) -> str:
        """The URL of the copy."""
        return self.dir.path

    def segments(self) -> list[str]:
        """Return the segments that are there."""
        return list(self._channel.call("segments"))

    def has_frames(self, name: str, start: int) -> bool:
        """Return whether a segment has a frame at an offset or behind it. Cost: a read of what is there."""
        return bool(self._channel.call("has_frames", name, start))

    def differs(self, primary: Directory, files: list[tuple[str, int]]) -> bool:
        """Return whether a file has another frame here than at the primary, at one place: no damage is that."""
        return differ(primary, self, files)

    def digests(self, parts: list[Part]) -> list[bytes | None]:
        """Return a digest of each part of a file that the copy has; None where it has no such file."""
        found: list[bytes | None] = []
        for at in range(0, len(parts), _PARTS_AT_ONCE):
            found += self._channel.call("digests", parts[at : at + _PARTS_AT_ONCE])
        return found

    def put(self, name: str, offset: int, data: bytes) -> None:
        """Write to a lap or slot file, above the length that counts. Not durable before the next `commit`."""
        self._channel.check()  # a first copy may go on for long without a call
        self._channel.cast("put", name, offset, data)

    def beat(self) -> None:
        """Write down that the copy has everything now. Not durable."""
        self._channel.cast("beat")

    def begin(self) -> None:
        """Begin a tick: the parts of one that was not committed are written over."""
        self._channel.cast("begin")

    def add(self, tick: Tick) -> None:
        """Write a part of a tick to the log, where it does not count before the last one."""
        self._channel.cast("add", tick.pack())

    def commit(self, tick: Tick) -> None:
        """Write the last part of a tick, and make it durable. Raises Fenced, NoWheel, OSError."""
        self._channel.call("commit", tick.pack())

    def close(self) -> None:
        """Close the files over there; the connection stays."""
        self._channel.cast("end")


# -- opening --------------------------------------------------------------------------------------------------


def channel_to(url: str) -> Channel:
    """Connect to the machine of a backup. Raises NoWheel, BadArgument."""
    return Channel(SshPeer(url), url)


def open_place(
    where: str, *, write: bool, env: Env, make: dict[str, Any] | None = None, force: bool = False
) -> Directory:
    """Open the directory of a backup, here or at the far end of a new connection.

    A wheel that is not there is made if there are arguments of `create_directory` in `make`. Raises as that, and as
    `open_directory`.
    """
    if scheme_of(where):
        return open_remote(channel_to(where), where, env=env, make=make, force=force)
    try:
        return open_directory(where, write=write, env=env)
    except NoWheel:
        if make is None:
            raise
    create_directory(where, **make, now_us=env.clock.now_us(), force=force, env=env)
    return open_directory(where, write=write, env=env)


@contextlib.contextmanager
def place_opened(
    where: str, *, env: Env, make: dict[str, Any] | None = None, force: bool = False
) -> Iterator[Directory]:
    """Open the directory of a backup for reading as `open_place` does, and release its disk at the end."""
    directory = open_place(where, write=False, env=env, make=make, force=force)
    try:
        yield directory
    finally:
        directory.disk.release()


def clear_place(directory: Directory) -> None:
    """Empty a copy, here or at the far end: in one call there. Raises as `clear`, and NoWheel."""
    if isinstance(directory.disk, RemoteDisk):
        directory.disk.channel.call("clear", wait_s=LONG_S)
    else:
        clear(directory)


def open_remote(
    channel: Channel, where: str, *, env: Env, make: dict[str, Any] | None = None, force: bool = False
) -> Directory:
    """Open the directory at the far end of a connection, which ends with its disk. Raises as `open_place`."""
    try:
        try:
            raw, notes = channel.call("wheel")
        except NoWheel:
            if make is None or channel.is_broken:
                raise
            channel.call("make", make, force)
            raw, notes = channel.call("wheel")
        return Directory(where, RemoteDisk(channel, where), parse_settings(raw, where), list(notes), env)
    except BaseException:
        channel.close()
        raise
