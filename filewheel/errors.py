"""Every way filewheel can fail, as one tree.

    FilewheelError
    ├── BadArgument (also a ValueError)      the call is wrong; nothing was done
    │   └── TooLarge                         payload, headers, topic, id list: over a limit
    ├── NoWheel                              no directory, or one that is not a wheel
    ├── WheelExists                          `init` met a wheel, or a directory that is not empty
    ├── NewerFormat                          written by a newer filewheel
    ├── Unsafe                               wrong owner, open to others, a link where a file belongs
    │   └── NetworkFileSystem                locks and flushes cannot be trusted there
    ├── Locked                               another process is the keeper, or is busy with the key
    ├── Damaged                              bytes that cannot be what was written
    ├── DiskError                            the operating system said no
    │   ├── WheelFull                        no space, or over quota
    │   └── ReadOnly                         file system or permissions forbid writing
    ├── Poisoned                             a flush failed earlier; this handle is finished
    ├── Closed                               used after close
    ├── Forked                               used in a child of the process that opened it
    ├── Reentered                            called by a signal handler in the middle of another call
    ├── OtherLoop                            used in another event loop than the one that opened it
    ├── NotFound                             no pending message has this id, or this key
    ├── KeyHeld                              another message that lives has this unique key
    ├── Fenced                               another wheel of the set is the primary
    ├── TooFewCopies                         fewer wheels hold it than were asked for
    └── NotClaimed                           acknowledged or put back without being claimed

Each carries `.path`, `.offset` and `.hint` (the next thing to try); `str()` shows all three.
Invariant: whatever raised, nothing that had been acknowledged is lost.
"""

from __future__ import annotations

import contextlib
import copy
import errno
from collections.abc import Iterator


class FilewheelError(Exception):
    """The root of the tree: catch this to catch everything filewheel raises on purpose."""

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

    def __str__(self) -> str:
        place = f"{self.path}: " if self.path else ""
        at = f" at offset {self.offset}" if self.offset is not None else ""
        todo = f". Try: {self.hint}" if self.hint else ""
        return f"{place}{self.what}{at}{todo}"


def said(exc: BaseException) -> str:
    """Say what an error says, without what to try: for somebody who is to do something else about it."""
    if not isinstance(exc, FilewheelError):
        return str(exc) or repr(exc)
    return f"{exc.path}: {exc.what}" if exc.path else exc.what


def said_of(exc: BaseException, path: str) -> str:
    """Say what an error says about a wheel that the sentence around it names already."""
    if isinstance(exc, FilewheelError):
        return exc.what if exc.path in (None, path) else said(exc)
    return getattr(exc, "strerror", None) or said(exc)


class BadArgument(FilewheelError, ValueError):
    """An argument is wrong; nothing was done."""

    kind = "usage"


class TooLarge(BadArgument):
    """Something is over its limit; nothing was done."""


class NoWheel(FilewheelError):
    """There is no wheel at this path."""

    kind = "no-wheel"


class WheelExists(FilewheelError):
    """A wheel, or something else, is already at this path."""

    kind = "exists"


class NewerFormat(FilewheelError):
    """The wheel was written by a newer filewheel."""

    kind = "newer-format"


class Unsafe(FilewheelError):
    """The directory's owner, mode or files do not allow trusting it."""

    kind = "unsafe"


class NetworkFileSystem(Unsafe):
    """The directory is on a network file system."""


class Locked(FilewheelError):
    """Another process holds the keeper's lock; `.pid` names it, and `.role` says as what, when known.

    With the role "key" it is the lock of a unique key. `.is_own`: a handle of this very process holds it.
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
        hint: str | None = "wait for it, or stop it; a standby takes over alone",
    ) -> None:
        super().__init__(what, path=path, hint=hint)
        self.pid = pid
        self.role = role


class Damaged(FilewheelError):
    """A file does not hold what was written to it."""

    kind = "damaged"


class DiskError(FilewheelError):
    """The operating system refused; `.errno` says how."""

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
    """The disk, or the quota, is full; what raised was not enqueued."""

    kind = "full"


class ReadOnly(DiskError):
    """The file system cannot be written, or permissions refuse access: also to read."""

    kind = "read-only"


class Poisoned(FilewheelError):
    """A flush failed on this handle: what is on disk is unknown, so it takes no more."""

    kind = "poisoned"


class Closed(FilewheelError):
    """The handle was closed."""

    kind = "closed"


class Forked(FilewheelError):
    """The handle was opened by a parent process."""

    kind = "forked"


class Reentered(FilewheelError):
    """A signal handler or a destructor called the handle that its own thread was using; nothing was done."""

    kind = "reentered"


class OtherLoop(FilewheelError):
    """The handle was opened in another event loop."""

    kind = "other-loop"


class NotFound(FilewheelError):
    """No pending message has this id, or this key."""

    kind = "not-found"


class KeyHeld(FilewheelError):
    """Another message that lives has this unique key; nothing was enqueued. `.id` is its MessageId, `.key` the key.

    Of a call with many keys `.held` says of each that is held by which message. A key that the call itself gives to two
    messages is held by none: `.id` is None then, and the text has their places in the call.
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
    """This wheel is a backup, or was fenced when another was promoted. `.primary` is that one's path."""

    kind = "fenced"

    def __init__(
        self, what: str, *, primary: str = "", epoch: int = 0, path: str | None = None, hint: str | None = None
    ) -> None:
        super().__init__(what, path=path, hint=hint)
        self.primary = primary
        self.epoch = epoch


class TooFewCopies(FilewheelError):
    """Fewer wheels hold the message than were asked for: it is not confirmed, and may be there or not."""

    kind = "too-few-copies"

    def __init__(self, what: str, *, copies: int = 0, path: str | None = None, hint: str | None = None) -> None:
        super().__init__(what, path=path, hint=hint)
        self.copies = copies


class NotClaimed(FilewheelError):
    """The message is not claimed by this keeper."""

    kind = "not-claimed"


FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_READ_ONLY = frozenset({errno.EROFS, errno.EACCES, errno.EPERM})


UNWRITTEN = "nothing of this call was written"
"""What a full disk cost a call that is one commit, whatever it was to do."""


def disk_error(exc: OSError, path: str, *, undone: str = "") -> FilewheelError:
    """Turn an OSError into the member of the tree that says what to do about it; `undone` is what a full disk cost."""
    code = exc.errno
    if code == errno.EBADF:  # closing a handle closes its directories, under calls that other threads are in
        return Closed(
            "another thread closed this handle meanwhile", path=path, hint="close it when its threads have ended"
        )
    says = exc.strerror or str(exc)
    if code in FULL:
        return WheelFull(
            f"no space left ({says})" + (f"; {undone}" if undone else ""),
            errno=code, path=path, hint="free some space, or raise the quota, and call again",
        )  # fmt: skip
    if code in _READ_ONLY:
        return ReadOnly(
            f"cannot be written ({says})" if code == errno.EROFS else f"access was refused ({says})",
            errno=code, path=path, hint="check the mount options and the owner of the directory",
        )  # fmt: skip
    if code == errno.EMLINK:
        return DiskError(
            f"{says}", errno=code, path=path,
            hint="find that name (`find -samefile`) and remove it, or put a copy (`cp`) in the place of this file",
        )  # fmt: skip
    if code in (errno.EMFILE, errno.ENFILE):
        return DiskError(f"too many open files ({says})", errno=code, path=path, hint="raise `ulimit -n`")
    if code == errno.EAGAIN:
        return DiskError(says, errno=code, path=path, hint="raise `ulimit -u`, or the container's limit of tasks")
    hint = getattr(exc, "hint", "look at the kernel log, then `filewheel verify`")
    return DiskError(says, errno=code, path=path, hint=hint)


@contextlib.contextmanager
def disk_errors(path: str) -> Iterator[None]:
    """Turn each OSError that is raised meanwhile into the member of the tree that says what to do about it."""
    try:
        yield
    except OSError as exc:
        raise disk_error(exc, path if exc.filename is None else str(exc.filename)) from exc


def unconfirmed(exc: FilewheelError) -> FilewheelError:
    """Return the error of a call whose frame was written before the call failed."""
    error = copy.copy(exc)
    error.what = f"{exc.what}; it was written, and is not confirmed"
    return error


def partly_done(exc: DiskError, done: int) -> DiskError:
    """Return the error of a call of which the first `done` messages were written before it failed."""
    what = exc.what.replace(f"; {UNWRITTEN}", "")
    return type(exc)(
        f"{what}; the first {done} messages of this call were written, without a confirmation",
        errno=exc.errno, path=exc.path, hint="free some space, look at what is there, and call again with the rest",
    )  # fmt: skip
