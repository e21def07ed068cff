"""filewheel: a durable timing wheel in a directory.

General layout (a module imports only from groups to its left; tests/test_layers.py guards it):

    errors clock headers message limits timespec loops speed
    | disk mounts layout frame record columns manifest directory segment writer journal
    | tail quarantine window slot owner ledger cut deal tidy
    | snapshot stats index finder keyfile keys reader ready head batch housekeeper
    | ids unique wheel keeper
    | verify repair transfer
"""

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

__all__ = [
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
