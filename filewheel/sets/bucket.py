"""A bucket: the few calls of an object store that a copy needs.

The library `obstore` makes them (extra `objects`): S3, Google, Azure, a directory. It tries again what may be tried
again. An object is made once, and never changed: `create` says whether it was there. That one rule of the store orders
all writers of a bucket.
Invariant: no error of the store leaves here as anything but one of the tree.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

from filewheel.checks import scheme_of, shown
from filewheel.errors import BadArgument, DiskError, FilewheelError, ReadOnly
from filewheel.message import US_PER_S
from filewheel.sets.pack import (
    HEAD_BYTES,
    Pack,
    PackHead,
    head_size,
    object_name,
    parse_object_name,
    unpack,
    unpack_head,
)

SCHEMES = ("s3", "s3a", "gs", "az", "adl", "azure", "abfs", "abfss", "file")
INSTALL = "pip install 'filewheel[objects]'"
_CALL_S = 20
"""A request that takes longer has failed."""
_RETRY_S = 15
_DELETE_MAX = 1000
_PROBE = "probe"
"""Made twice when a bucket is added, and deleted."""


class Listed(NamedTuple):
    """An object of a listing."""

    number: int
    since_us: int
    """When it was made, by the clock of the store."""


def is_bucket(url: str) -> bool:
    """Return whether this names a bucket, and not a directory or another machine."""
    return scheme_of(url) in SCHEMES


class ObjectStore:
    """One prefix of one bucket. May be used by several threads."""

    def __init__(self, url: str, store: Any = None) -> None:
        """`store` is a store of obstore, for one that a URL cannot say. Raises BadArgument."""
        self.url = url
        self._store = _open(url) if store is None else store

    def place(self, number: int) -> str:
        """Return an object's URL for an error message."""
        return f"{self.url.rstrip('/')}/{object_name(number)}"

    def create(self, number: int, data: bytes) -> bool:
        """Make an object; return False when there is one of this number. Raises DiskError: it may be there then."""
        with self._asked(object_name(number)):
            try:
                _obstore().put(self._store, object_name(number), data, mode="create")
            except _obstore().exceptions.AlreadyExistsError:
                return False
        return True

    def check(self) -> None:
        """Raise BadArgument unless the store makes a name once: some that speak S3 ignore the condition.

        Leaves nothing, if the key may delete. Raises DiskError.
        """
        with self._asked(_PROBE):
            made = 0
            for _ in range(2):
                with contextlib.suppress(_obstore().exceptions.AlreadyExistsError):
                    _obstore().put(self._store, _PROBE, b"", mode="create")
                    made += 1
            with contextlib.suppress(_obstore().exceptions.BaseError, OSError):
                _obstore().delete(self._store, _PROBE)
        if made > 1:
            raise BadArgument(
                "this store makes a name twice (it ignores If-None-Match), so a second writer would not be refused",
                path=self.url,
                hint="another store, or a newer version of it",
            )

    def head(self, number: int) -> tuple[PackHead, bytes] | None:
        """Read the head of an object, and its digest; None when there is no such object. Raises Damaged, DiskError."""
        data = self._read(number, HEAD_BYTES)
        if data is not None and head_size(data) > len(data) >= HEAD_BYTES:
            data = self._read(number, head_size(data))
        return None if data is None else unpack_head(data, number, self.place(number))

    def read(self, number: int) -> Pack | None:
        """Read an object; None when there is none of this number. Raises Damaged, DiskError."""
        data = self._read(number, None)
        return None if data is None else unpack(data, number, self.place(number))

    def _read(self, number: int, size: int | None) -> bytes | None:
        name = object_name(number)
        with self._asked(name):
            try:
                if size is None:
                    return bytes(_obstore().get(self._store, name).bytes())
                return bytes(_obstore().get_range(self._store, name, start=0, end=size))
            except FileNotFoundError:
                return None

    def listing(self) -> Iterator[Listed]:
        """Yield the objects by their numbers. Cost: a request for each thousand. Raises DiskError."""
        with self._asked():
            pages = _obstore().list(self._store)
            if type(self._store).__name__ == "LocalStore":  # the one whose listings are not sorted
                pages = [sorted((one for page in pages for one in page), key=lambda one: one["path"])]
            for page in pages:
                for one in page:
                    number = parse_object_name(one["path"])
                    if number is not None:
                        yield Listed(number, _us(one["last_modified"]))

    def since_us(self, number: int) -> int:
        """Return when an object was made, by the clock of the store. Raises DiskError."""
        name = object_name(number)
        with self._asked(name):
            return _us(_obstore().head(self._store, name)["last_modified"])

    def last_whole(self, numbers: list[int]) -> PackHead | None:
        """Return the head of the last object, among these, that ends a tick; None when no tick is whole.

        Raises Damaged when that cannot be told, DiskError.
        """
        for number in reversed(numbers):
            found = self.head(number)
            if found is not None and found[0].is_last and not found[0].is_mark:
                return found[0]
        return None

    def delete(self, numbers: Iterable[int]) -> None:
        """Delete objects; those that are not there are passed over. Raises DiskError."""
        names = [object_name(number) for number in numbers]
        with self._asked():
            for i in range(0, len(names), _DELETE_MAX):
                with contextlib.suppress(FileNotFoundError):
                    _obstore().delete(self._store, names[i : i + _DELETE_MAX])

    @contextlib.contextmanager
    def _asked(self, name: str = "") -> Iterator[None]:
        try:
            yield
        except (_obstore().exceptions.BaseError, OSError) as exc:
            raise _error(exc, f"{self.url.rstrip('/')}/{name}" if name else self.url) from exc


def _us(when: datetime) -> int:
    return round(when.timestamp() * US_PER_S)


def _error(exc: Exception, place: str) -> FilewheelError:
    """Return the error of the tree: of the first lines, since what follows them is for the makers of the library."""
    says = " ".join(str(exc).partition("\n\nDebug source")[0].split())[:500]
    errors = _obstore().exceptions
    if isinstance(exc, (errors.PermissionDeniedError, errors.UnauthenticatedError, PermissionError)):
        return ReadOnly(f"the store refused access ({says})", path=place, hint="look at the key and its rights")
    return DiskError(f"the store failed ({says})", path=place, hint="look at the network and the store")


def _obstore() -> Any:
    try:
        import obstore
    except ImportError as exc:
        raise BadArgument("a bucket needs the library obstore", hint=INSTALL) from exc
    return obstore


def _open(url: str) -> Any:
    if not isinstance(url, str) or not is_bucket(url):
        raise BadArgument(f"{shown(url)} is no bucket", hint="s3://bucket/prefix, gs://, az:// or file:///directory")
    _obstore()
    from obstore.store import from_url

    options: dict[str, Any] = {}
    if url.startswith("file:"):
        options["mkdir"] = True
        with contextlib.suppress(OSError):  # the library's error names it
            os.makedirs(unquote(urlsplit(url).path), mode=0o700, exist_ok=True)  # payloads are in it
    if not url.startswith("file:"):
        options = {
            "client_options": {"timeout": f"{_CALL_S}s", "connect_timeout": "5s", "allow_http": True},
            "retry_config": {"max_retries": 4, "retry_timeout": timedelta(seconds=_RETRY_S)},
        }
    try:
        return from_url(url, **options)
    except (_obstore().exceptions.BaseError, ValueError, OSError) as exc:
        raise BadArgument(_error(exc, url).what, path=url, hint="look at the URL, and at the key") from exc
