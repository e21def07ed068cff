"""All errors of filewheel, as one tree.

    FilewheelError
    ├── BadArgument (also a ValueError)      the call is wrong; nothing was done
    │   └── TooLarge                         payload, headers, topic, id list: over a limit
    ├── NoWheel                              no directory, or one that is not a wheel
    ├── WheelExists                          `init` found a wheel, or a directory that is not empty
    ├── NewerFormat                          written by a newer filewheel
    ├── Unsafe                               wrong owner, open to others, a link where a file belongs
    │   └── NetworkFileSystem                locks and flushes cannot be trusted there
    ├── Locked                               another process is the keeper, or holds the lock of a key
    ├── Damaged                              a file does not hold what was written to it
    ├── DiskError                            the operating system refused
    │   ├── WheelFull                        no space, or over quota
    │   └── ReadOnly                         file system or permissions forbid writing
    ├── Poisoned                             a flush failed earlier; this handle is finished
    ├── Closed (also a RuntimeError)         used after close
    ├── Forked                               used in a child of the process that opened it
    ├── Reentered                            called by a signal handler during another call
    ├── OtherLoop (also a RuntimeError)      used in an event loop that did not open it, or in none
    ├── NotFound                             no pending message has this id, or this key
    ├── CallFailed                           the call whose result was asked for has failed for good
    ├── ResultTimeout                        a call has not ended in time
    ├── ResultNotKept                        a call ended well, and what it returned could not be kept
    ├── KeyHeld                              another living message has this unique key
    ├── Fenced                               another wheel of the set is the primary
    ├── TooFewCopies                         fewer wheels hold it than the set asks for
    ├── NotClaimed                           acknowledged or put back without being claimed
    ├── TooManyTimers                        a timer in memory has as many pending as it may
    ├── WrongPlatform (also an ImportError)  raised by `import filewheel` where the system is not Linux
    ├── WrongSource                          the wheel of another Kafka topic, partition or cluster
    └── ClusterError                         Kafka refused, or did not answer
        ├── NoBroker                         no broker answers at this address
        ├── MissingTopic                     a topic of the delay service is missing, or has too few partitions
        ├── NotAllowed                       Kafka refuses this user
        └── Outlived                         the log no longer holds the next record

Each has `.path`, `.offset` and `.hint` (the next thing to try); `str()` shows all three.
Invariant: after any error, every acknowledged call is still durable.
"""

from __future__ import annotations

import contextlib
import copy
import errno
from collections.abc import Iterator
from typing import TypeVar

Error = TypeVar("Error", bound=BaseException)


class FilewheelError(Exception):
    """The root of the tree: catch it to catch every error that filewheel raises on purpose."""

    kind = "failed"

    def __init__(
        self,
        what: str,
        *,
        path: str | None = None,
        offset: int | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(what)
        self.what = what
        self.path = path
        self.offset = offset
        self.hint = hint

    @property
    def is_of_one_file(self) -> bool:
        """Whether this is about one file only: messages that do not need that file are unaffected."""
        is_foreign = isinstance(self.__cause__, NotADirectoryError) or getattr(self.__cause__, "is_foreign", False)
        return self.kind == "damaged" or is_foreign

    def __str__(self) -> str:
        place = f"{self.path}: " if self.path else ""
        at = f" at offset {self.offset}" if self.offset is not None else ""
        todo = f". Try: {self.hint}" if self.hint else ""
        return f"{place}{self.what}{at}{todo}"


def said(exc: BaseException) -> str:
    """Return an error's text without its hint: for a caller that has a better hint."""
    if not isinstance(exc, FilewheelError):
        return str(exc) or repr(exc)
    return f"{exc.path}: {exc.what}" if exc.path else exc.what


def said_of(exc: BaseException, path: str) -> str:
    """Return an error's text for a sentence that already names the wheel at `path`."""
    if isinstance(exc, FilewheelError):
        return exc.what if exc.path in (None, path) else said(exc)
    return getattr(exc, "strerror", None) or said(exc)


class BadArgument(FilewheelError, ValueError):
    """An argument is wrong; nothing was done."""

    kind = "usage"


class TooLarge(BadArgument):
    """An argument is over its limit; nothing was done."""


class NoWheel(FilewheelError):
    """There is no wheel at this path."""

    kind = "no-wheel"


class WheelExists(FilewheelError):
    """There is already a wheel, or another file, at this path."""

    kind = "exists"


class NewerFormat(FilewheelError):
    """The wheel was written by a newer filewheel."""

    kind = "newer-format"


class Unsafe(FilewheelError):
    """The owner, the mode or the files of the directory make it unsafe to use."""

    kind = "unsafe"


class NetworkFileSystem(Unsafe):
    """The directory is on a network file system."""


class Locked(FilewheelError):
    """Another process holds the keeper's lock: `.pid` is the process and `.role` its role, when known.

    The role "key" means the lock of a unique key. `.is_own` is true when a handle of this process holds the lock.
    """

    kind = "locked"
    is_own = False

    def __init__(
        self,
        what: str,
        *,
        pid: int | None = None,
        role: str = "",
        path: str | None = None,
        hint: str | None = "wait for it, or stop it; a standby takes over by itself",
    ) -> None:
        super().__init__(what, path=path, hint=hint)
        self.pid = pid
        self.role = role


class Damaged(FilewheelError):
    """A file does not hold what was written to it."""

    kind = "damaged"


class DiskError(FilewheelError):
    """The operating system refused; `.errno` is its error number."""

    kind = "disk"

    def __init__(
        self,
        what: str,
        *,
        errno: int | None = None,
        path: str | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(what, path=path, hint=hint)
        self.errno = errno


class WheelFull(DiskError):
    """The disk, the quota or a limit on the size of files is full; the call that raised enqueued nothing."""

    kind = "full"


class ReadOnly(DiskError):
    """The file system is read-only, or permissions refuse access, to read or to write."""

    kind = "read-only"


class Poisoned(FilewheelError):
    """A flush failed on this handle: the state on disk is unknown, so the handle takes no more calls."""

    kind = "poisoned"


class Closed(FilewheelError, RuntimeError):
    """The handle was closed."""

    kind = "closed"


class Forked(FilewheelError):
    """The handle was opened by a parent process."""

    kind = "forked"


class Reentered(FilewheelError):
    """A signal handler or a destructor called a handle that its own thread was using; nothing was done."""

    kind = "reentered"


class OtherLoop(FilewheelError, RuntimeError):
    """The handle was opened in another event loop, or no loop runs here."""

    kind = "other-loop"


class NotFound(FilewheelError):
    """No pending message has this id, or this key."""

    kind = "not-found"


class CallFailed(FilewheelError):
    """The call whose result was asked for has failed, and is not tried again. `.error` says why."""

    kind = "call-failed"

    def __init__(self, what: str, *, error: str = "", path: str | None = None, hint: str | None = None) -> None:
        super().__init__(what, path=path, hint=hint)
        self.error = error


class ResultTimeout(FilewheelError):
    """The call whose result was asked for has not ended in time: it waits, runs, or is retried."""

    kind = "timed-out"


class ResultNotKept(FilewheelError):
    """The call ended well, but what it returned could not be stored, or is too large."""

    kind = "result-not-kept"


class KeyHeld(FilewheelError):
    """Another living message has this unique key; nothing was enqueued. `.id` is its MessageId, `.key` the key.

    For a call with many keys, `.held` maps each key that is held to the id of its holder. If the call gives one key to
    two of its own messages, `.id` is None, and the text names their places in the call.
    """

    kind = "key-held"

    def __init__(
        self, what: str, *, key: str = "", id: bytes | None = None, path: str | None = None, hint: str | None = None
    ) -> None:
        super().__init__(what, path=path, hint=hint)
        self.key = key
        self.id = id
        self.held = {key: id} if id is not None else {}


class Fenced(FilewheelError):
    """This wheel is a backup, or was fenced when another was promoted. `.primary` is the path of the primary."""

    kind = "fenced"

    def __init__(
        self, what: str, *, primary: str = "", epoch: int = 0, path: str | None = None, hint: str | None = None
    ) -> None:
        super().__init__(what, path=path, hint=hint)
        self.primary = primary
        self.epoch = epoch


class TooFewCopies(FilewheelError):
    """Fewer wheels hold the message than the set asks for: it is not confirmed, and may be enqueued or not."""

    kind = "too-few-copies"

    def __init__(self, what: str, *, copies: int = 0, path: str | None = None, hint: str | None = None) -> None:
        super().__init__(what, path=path, hint=hint)
        self.copies = copies


class TooManyTimers(FilewheelError):
    """A timer in memory has as many timers pending as it may; this one was not started."""

    kind = "too-many-timers"


class WrongPlatform(FilewheelError, ImportError):
    """The system is not Linux. Raised by `import filewheel`, so it is caught as an ImportError."""

    kind = "wrong-platform"


class WrongSource(FilewheelError):
    """The wheel has records of another topic, partition or cluster of Kafka; nothing was done."""

    kind = "wrong-source"


class NotClaimed(FilewheelError):
    """The message is not claimed by this keeper."""

    kind = "not-claimed"


class ClusterError(FilewheelError):
    """A Kafka cluster refused, or did not answer in time."""

    kind = "cluster"


class NoBroker(ClusterError):
    """No broker answers at this address."""

    kind = "no-broker"


class MissingTopic(ClusterError):
    """A topic of the delay service is missing, or has too few partitions."""

    kind = "missing-topic"


class NotAllowed(ClusterError):
    """The cluster refuses this user."""

    kind = "not-allowed"


class Outlived(ClusterError):
    """The log no longer holds the next record of a partition: retention was shorter than the delay."""

    kind = "outlived"


FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_READ_ONLY = frozenset({errno.EROFS, errno.EACCES, errno.EPERM})


def platform_error(name: str) -> WrongPlatform | None:
    """Return the error of a `sys.platform` that filewheel refuses; None for Linux."""
    refused = WrongPlatform(
        f"filewheel runs on Linux only, and this is {name}: its promises rest on fdatasync, flushes of directories and "
        "locks that were tested nowhere else",
        hint="a container, a virtual machine, or WSL 2",
    )
    return None if name == "linux" else refused


def anew(exc: Error) -> Error:
    """Return a new error like one that is kept, with its causes and without tracebacks: to be raised, or to be kept.

    One that is kept and raised again and again collects the frames of each caller, and holds all that these have.
    """
    try:
        made = copy.copy(exc)
    except Exception:  # not every class of a program can be copied
        return exc.with_traceback(None)
    made.__cause__ = None if exc.__cause__ is None else anew(exc.__cause__)
    return made


UNWRITTEN = "nothing of this call was written"
"""The outcome of a call that is one commit, on a full disk."""


def disk_error(exc: OSError, path: str, *, undone: str = "") -> FilewheelError:
    """Return the error of the tree for an OSError; `undone` is the outcome of the call on a full disk."""
    code = exc.errno
    if code == errno.EBADF:  # closing a handle closes its directories, also during calls of other threads
        return Closed(
            "another thread closed this handle during the call", path=path, hint="close it when its threads have ended"
        )
    says = exc.strerror or str(exc)
    if code in FULL:
        return WheelFull(
            f"no space left ({says})" + (f"; {undone}" if undone else ""),
            errno=code,
            path=path,
            hint="raise `ulimit -f`, and call again"
            if code == errno.EFBIG
            else "free some space or inodes, or raise the quota, and call again",
        )
    if code in _READ_ONLY:
        return ReadOnly(
            f"cannot be written ({says})" if code == errno.EROFS else f"access was refused ({says})",
            errno=code,
            path=path,
            hint="check the mount options and the owner of the directory",
        )
    if code == errno.EMLINK:
        return DiskError(
            f"{says}",
            errno=code,
            path=path,
            hint="find that name (`find -samefile`) and remove it, or replace this file by a copy (`cp`)",
        )
    if code in (errno.EMFILE, errno.ENFILE):
        return DiskError(f"too many open files ({says})", errno=code, path=path, hint="raise `ulimit -n`")
    if code == errno.EAGAIN:
        return DiskError(says, errno=code, path=path, hint="raise `ulimit -u`, or the container's task limit")
    is_gone = code in (errno.ENOENT, errno.ENOTDIR)
    advice = (
        "look what removed or replaced it, then open again"
        if is_gone
        else "look at the kernel log, then `filewheel verify`"
    )
    hint = getattr(exc, "hint", advice)
    return DiskError(says, errno=code, path=path, hint=hint)


@contextlib.contextmanager
def disk_errors(path: str) -> Iterator[None]:
    """Turn an OSError that the body raises into an error of the tree."""
    try:
        yield
    except OSError as exc:
        raise disk_error(exc, path if exc.filename is None else str(exc.filename)) from exc


def unconfirmed(exc: FilewheelError) -> FilewheelError:
    """Return the error of a call that failed after its frame was written."""
    error = anew(exc)
    error.what = f"{exc.what}; it was written, and is not confirmed"
    return error


def partly_done(exc: DiskError, done: int) -> DiskError:
    """Return the error of a call that failed after its first `done` messages were written."""
    what = exc.what.replace(f"; {UNWRITTEN}", "")
    return type(exc)(
        f"{what}; the first {done} messages of this call were written, but are not confirmed",
        errno=exc.errno,
        path=exc.path,
        hint="free some space, see which messages exist, and call again with the rest",
    )
