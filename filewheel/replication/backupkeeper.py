"""The keeper of a backup: it deals and deletes what is finished, and never fires.

It is the keeper's own protocol on the keeper's own lock, with the role "backup" in its note: the same ledger, head and
housekeeper, but nothing is ever claimed. A message leaves when its drop arrives. What the head holds is what is due and
has not been dropped yet; a second of which nothing is left is finished, and its file goes whole with the next deal.

Unique keys: the index of a backup is filled here, from what was read and before it is dealt, so that a promoted
backup knows who holds a key. Everything runs in the thread that calls `tick`, so that nothing is dealt between a look
at the backup and what is written because of it.
Invariant: when this has been opened, and at each `tick`, every message with a key that was read is in the index.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable, Iterable

from filewheel.clock import SYSTEM_CLOCK, Clock
from filewheel.directory import DiskFactory, open_directory
from filewheel.disk import OsDisk
from filewheel.errors import FilewheelError, disk_error
from filewheel.frame import Frame
from filewheel.head import Head
from filewheel.headers import KEY
from filewheel.housekeeper import Housekeeper
from filewheel.keeper import READY_BUDGET
from filewheel.keys import Keys, key_of
from filewheel.ledger import Ledger
from filewheel.owner import Owner
from filewheel.record import ID, records_of
from filewheel.unique import holding
from filewheel.window import Budget
from filewheel.writer import Entropy

_KEY_BYTES = KEY.encode()
OnFrame = Callable[[Frame], None]


class BackupHead(Head):
    """A head that follows: what the primary's keeper decides arrives as records, so it decides nothing itself."""

    def _cancel_moved(self, id_: bytes) -> None:
        """Leave it: the primary's keeper writes a drop for where the message is now, if it cancels it."""


class BackupKeeper:
    """Holds a backup's lock, and keeps its files in order. Not thread-safe."""

    def __init__(
        self,
        path: str,
        *,
        role: str = "backup",
        wait: bool = False,
        on_frame: OnFrame | None = None,
        budget: Budget = READY_BUDGET,
        clock: Clock = SYSTEM_CLOCK,
        disk: DiskFactory = OsDisk,
        entropy: Entropy = secrets.token_bytes,
    ) -> None:
        """Take the lock and recover. `on_frame` is told each frame that is read from the backup's journals.

        Raises Locked, NoWheel, DiskError.
        """
        self.dir = open_directory(path, write=True, disk=disk)
        self._clock = clock
        self._on_frame = on_frame
        self._broken: FilewheelError | None = None
        self._owner = Owner(self.dir)
        try:
            self._owner.take(role, wait=wait)
        except BaseException:
            self.dir.disk.release()
            raise
        self.ledger = Ledger(self.dir, clock, entropy=entropy)
        self._head = BackupHead(self.ledger, budget)
        self._keys = Keys(self.dir)
        self._take_in = self.ledger.on_frame
        self.ledger.on_frame = self._read
        self._housekeeper = Housekeeper(
            self.ledger, self._keys, self._head.finished, flush_interval_s=0.02, on_failure=self._fail
        )
        try:
            self.ledger.recover()
        except BaseException as exc:
            self._let_go()
            if isinstance(exc, OSError):
                raise disk_error(exc, path) from exc
            raise

    def _fail(self, exc: FilewheelError) -> None:
        self._broken = exc

    def _read(self, frame: Frame) -> None:
        if self._take_in is not None:
            self._take_in(frame)
        if frame.puts and _KEY_BYTES in frame.body:
            self._enter_keys(frame)
        if self._on_frame is not None:
            self._on_frame(frame)

    def _enter_keys(self, frame: Frame) -> None:
        enter_keys(self._keys, records_of(frame)[0], self._clock.now_us(), self.dir.path)

    def ingest(self) -> None:
        """Read what the backup's journals have gained. Raises DiskError."""
        try:
            self.ledger.ingest()
        except OSError as exc:
            raise disk_error(exc, self.dir.path) from exc

    def tick(self) -> None:
        """Read what has come, and do what housekeeping there is. Raises DiskError, Poisoned."""
        if self._broken is not None:
            raise self._broken
        try:
            with self.ledger.lock:
                self._head.refresh(self._clock.now_us())
            self._housekeeper.step()
        except OSError as exc:
            raise disk_error(exc, self.dir.path) from exc

    def close(self, *, deal: bool = True) -> None:
        """Deal what is undealt, and let go of the lock."""
        try:
            if deal and self._broken is None:
                with self.ledger.lock:
                    self._head.refresh(self._clock.now_us())
                self._housekeeper.deal_all()
        except OSError as exc:
            raise disk_error(exc, self.dir.path) from exc
        finally:
            self._let_go()

    def _let_go(self) -> None:
        try:
            with contextlib.suppress(OSError, FilewheelError):
                self.ledger.close()
        finally:
            self._owner.release()
            self.dir.disk.release()


def enter_keys(keys: Keys, puts: Iterable[bytes], now_us: int, path: str) -> None:
    """Enter the keys of packed puts into a wheel's index, those that are not there. Durable on return (U2).

    Raises Locked when another process has one of them for half a minute, DiskError.
    """
    pairs = [(key, put[ID]) for put in puts if (key := key_of(put)) is not None]
    missing = [(key, id_) for key, id_ in pairs if id_ not in keys.listed(key)]
    if missing:
        with holding(keys, [key for key, _ in missing], path) as hold:
            for key, _ in missing:
                hold.look(key, now_us)
            hold.note(missing)
