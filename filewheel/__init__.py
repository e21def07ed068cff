"""filewheel: a durable timing wheel in a directory.

General layout (a module imports only from groups to its left; tests/test_layers.py guards it):

    errors clock headers message limits timespec loops speed exposition metrics
    | disk mounts layout frame record columns manifest directory segment writer appender journal
    | tail quarantine window slot owner ledger cut deal tidy
    | published snapshot stats index frames finder reader ready head batch housekeeper
    | ids settlement wheel keeper
    | verify repair transfer
"""

import logging as _logging

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
