"""filewheel: a durable timing wheel in a directory.

General layout (a module imports only from groups to its left; tests/test_layers.py guards it):

    errors clock headers message limits timespec loops speed exposition metrics
    | disk mounts layout frame record columns manifest directory segment writer appender journal
    | tail quarantine window slot owner ledger cut deal tidy
    | published snapshot stats index frames finder keyfile keys reader ready head batch housekeeper
    | ids unique settlement settler wheel keeper
    | worker joint aiokeeper aio
    | verify repair transfer
"""

import logging as _logging
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
    KeyHeld,
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
from filewheel.settlement import Settlement
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
    "KeyHeld",
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
    "Settlement",
    "Stats",
    "Sync",
    "TooLarge",
    "Unsafe",
    "Wheel",
    "WheelExists",
    "WheelFull",
    "__version__",
]

# Who does not ask for logs gets none; the command line, and any application, adds a handler of its own.
_logging.getLogger("filewheel").addHandler(_logging.NullHandler())


# What takes a while to import (asyncio, multiprocessing), by the module that has it: only whoever uses it waits.
_LATER = {
    "AsyncKeeper": "filewheel.aiokeeper",
    "AsyncWheel": "filewheel.aio",
}


def __getattr__(name: str) -> object:
    if name in _LATER:
        from importlib import import_module

        globals()[name] = found = getattr(import_module(_LATER[name]), name)
        return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
