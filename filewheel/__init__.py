"""filewheel: a durable timing wheel in a directory.

General layout (a module imports only from groups to its left; tests/test_layers.py guards it):

    errors clock headers message limits timespec loops speed
    | disk mounts layout frame record columns manifest directory segment writer journal
    | tail quarantine window slot owner ledger cut deal tidy
    | snapshot stats index finder reader ready head batch housekeeper
    | ids wheel keeper | worker joint aiokeeper aio
    | verify repair transfer
"""

import typing as _typing

from filewheel._version import __version__
from filewheel.batch import Batch
from filewheel.directory import Sync
from filewheel.errors import (
    BadArgument,
    Closed,
    Damaged,
    DiskError,
    FilewheelError,
    Forked,
    Locked,
    NetworkFileSystem,
    NewerFormat,
    NotClaimed,
    NotFound,
    NoWheel,
    OtherLoop,
    Poisoned,
    ReadOnly,
    TooLarge,
    Unsafe,
    WheelExists,
    WheelFull,
)
from filewheel.ids import Ids
from filewheel.keeper import Keeper
from filewheel.message import Message, MessageId
from filewheel.stats import Histogram, Stats
from filewheel.wheel import Wheel

if _typing.TYPE_CHECKING:
    from filewheel.aio import AsyncWheel
    from filewheel.aiokeeper import AsyncKeeper

__all__ = [
    "AsyncKeeper",
    "AsyncWheel",
    "BadArgument",
    "Batch",
    "Closed",
    "Damaged",
    "DiskError",
    "FilewheelError",
    "Forked",
    "Histogram",
    "Ids",
    "Keeper",
    "Locked",
    "Message",
    "MessageId",
    "NetworkFileSystem",
    "NewerFormat",
    "NoWheel",
    "NotClaimed",
    "NotFound",
    "OtherLoop",
    "Poisoned",
    "ReadOnly",
    "Stats",
    "Sync",
    "TooLarge",
    "Unsafe",
    "Wheel",
    "WheelExists",
    "WheelFull",
    "__version__",
]


def __getattr__(name: str) -> object:
    # asyncio takes a while to import: only whoever uses it does.
    if name in ("AsyncKeeper", "AsyncWheel"):
        from filewheel import aio, aiokeeper

        globals().update(AsyncWheel=aio.AsyncWheel, AsyncKeeper=aiokeeper.AsyncKeeper)
        return globals()[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
