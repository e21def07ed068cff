"""filewheel: a durable timing wheel in a directory.

General layout (a module imports only from groups to its left; one/ is a package; tests/test_layers.py guards it):

    errors checks clock headers message limits timespec loops puts speed forks reentry started reopening exposition
    | metrics flock alarm pipe disk mounts layout frame record columns manifest directory roster standing stale bell
    | begun segment writer appender mirror copies ids journal
    | gaps tail quarantine window missing slot owner cancelled retained ledger cut additions deal tidy
    | published snapshot stats index frames finder front tally keyfile locks keys reader aside ready head begins
    | batch jumps housekeeper unique groupcommit settlement settler outcomes changes wheel gauges keeper
    | worker joint gathering due aiokeeper aio
    | unlisted verify repair transfer difference
    | replication/
    | scheduling/
    | bridges/
    | testing
"""

import typing as _typing

from filewheel._version import __version__
from filewheel.batch import Batch
from filewheel.cancelled import Cancelled, CancelledIds
from filewheel.directory import Sync
from filewheel.errors import (
    BadArgument,
    Closed,
    Damaged,
    DiskError,
    Fenced,
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
    Reentered,
    TooFewCopies,
    TooLarge,
    Unsafe,
    WheelExists,
    WheelFull,
)
from filewheel.ids import Ids
from filewheel.keeper import Keeper
from filewheel.message import Message, MessageId
from filewheel.metrics import Metrics
from filewheel.settlement import Settlement
from filewheel.stats import Histogram, Stats
from filewheel.wheel import Wheel

if _typing.TYPE_CHECKING:
    from filewheel.aio import AsyncWheel
    from filewheel.aiokeeper import AsyncKeeper
    from filewheel.replication.promote import Promotion, promote
    from filewheel.replication.rejoin import Rejoin, rejoin
    from filewheel.replication.replicator import Replicator
    from filewheel.replication.report import LinkReport
    from filewheel.replication.sets import MemberStatus, SetStatus, add_backup, remove_backup, set_status
    from filewheel.replication.standby import Standby
    from filewheel.scheduling.aio import AsyncScheduler
    from filewheel.scheduling.call import StoredCall, call_of
    from filewheel.scheduling.cron import Cron
    from filewheel.scheduling.events import Event
    from filewheel.scheduling.failure import GiveUp, RetryLater
    from filewheel.scheduling.handler import Handler
    from filewheel.scheduling.job import Job, current_job
    from filewheel.scheduling.recurrence import Every
    from filewheel.scheduling.retry import Retry
    from filewheel.scheduling.scheduler import Scheduler

__all__ = [
    "AsyncKeeper",
    "AsyncScheduler",
    "AsyncWheel",
    "BadArgument",
    "Batch",
    "Cancelled",
    "CancelledIds",
    "Closed",
    "Cron",
    "Damaged",
    "DiskError",
    "Event",
    "Every",
    "Fenced",
    "FilewheelError",
    "Forked",
    "GiveUp",
    "Handler",
    "Histogram",
    "Ids",
    "Job",
    "Keeper",
    "KeyHeld",
    "LinkReport",
    "Locked",
    "MemberStatus",
    "Message",
    "MessageId",
    "Metrics",
    "NetworkFileSystem",
    "NewerFormat",
    "NoWheel",
    "NotClaimed",
    "NotFound",
    "OtherLoop",
    "Poisoned",
    "Promotion",
    "ReadOnly",
    "Reentered",
    "Rejoin",
    "Replicator",
    "Retry",
    "RetryLater",
    "Scheduler",
    "SetStatus",
    "Settlement",
    "Standby",
    "Stats",
    "StoredCall",
    "Sync",
    "TooFewCopies",
    "TooLarge",
    "Unsafe",
    "Wheel",
    "WheelExists",
    "WheelFull",
    "__version__",
    "add_backup",
    "call_of",
    "current_job",
    "promote",
    "rejoin",
    "remove_backup",
    "set_status",
]

# What takes a while to import (asyncio, multiprocessing), by the module that has it: only whoever uses it waits.
_LATER = {
    "AsyncKeeper": "filewheel.aiokeeper",
    "AsyncScheduler": "filewheel.scheduling.aio",
    "AsyncWheel": "filewheel.aio",
    "Cron": "filewheel.scheduling.cron",
    "Event": "filewheel.scheduling.events",
    "Every": "filewheel.scheduling.recurrence",
    "GiveUp": "filewheel.scheduling.failure",
    "Handler": "filewheel.scheduling.handler",
    "Job": "filewheel.scheduling.job",
    "LinkReport": "filewheel.replication.report",
    "MemberStatus": "filewheel.replication.sets",
    "Promotion": "filewheel.replication.promote",
    "Rejoin": "filewheel.replication.rejoin",
    "Replicator": "filewheel.replication.replicator",
    "Retry": "filewheel.scheduling.retry",
    "RetryLater": "filewheel.scheduling.failure",
    "Scheduler": "filewheel.scheduling.scheduler",
    "SetStatus": "filewheel.replication.sets",
    "Standby": "filewheel.replication.standby",
    "StoredCall": "filewheel.scheduling.call",
    "add_backup": "filewheel.replication.sets",
    "call_of": "filewheel.scheduling.call",
    "current_job": "filewheel.scheduling.job",
    "promote": "filewheel.replication.promote",
    "rejoin": "filewheel.replication.rejoin",
    "remove_backup": "filewheel.replication.sets",
    "set_status": "filewheel.replication.sets",
}


def __getattr__(name: str) -> object:
    if name in _LATER:
        from importlib import import_module

        globals()[name] = found = getattr(import_module(_LATER[name]), name)
        return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
