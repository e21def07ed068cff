"""filewheel: a durable timing wheel in a directory.

`wheel.py` and `keeper.py` are its two entry points; a message passes through the folders in this order.
A file imports only from its own folder and from those to the left of it (tests/test_layers.py checks it):

    errors checks values message | native | env timespec | timers | format | disk | roster | journal | laps | lookup
    | keys | runs | firing | metrics | sets | schedules | reader changes wheel keeper | aio
    tools | scheduling | bridges testing | live | kafka
"""

__version__ = "0.2.0"

import sys as _sys
import typing as _typing

from filewheel.errors import platform_error as _platform_error

if (_refused := _platform_error(_sys.platform)) is not None:  # before the rest: on Windows the import of fcntl fails
    raise _refused

from filewheel.changes import Revived
from filewheel.disk.begun import Cancelled, CancelledIds
from filewheel.errors import (
    BadArgument,
    CallFailed,
    Closed,
    ClusterError,
    Damaged,
    DiskError,
    Fenced,
    FilewheelError,
    Forked,
    KeyHeld,
    Locked,
    MissingTopic,
    NetworkFileSystem,
    NewerFormat,
    NoBroker,
    NotAllowed,
    NotClaimed,
    NotFound,
    NoWheel,
    OtherLoop,
    Outlived,
    Poisoned,
    ReadOnly,
    Reentered,
    ResultNotKept,
    ResultTimeout,
    TooFewCopies,
    TooLarge,
    TooManyTimers,
    Unsafe,
    WheelExists,
    WheelFull,
    WrongPlatform,
    WrongSource,
)
from filewheel.format.ids import Ids
from filewheel.format.pauses import Pause, Pauses
from filewheel.format.settings import Sync
from filewheel.journal.settlement import Settlement
from filewheel.lookup.overdue import Overdue
from filewheel.lookup.snapshot import Filter, Snapshot
from filewheel.lookup.stats import Histogram, Stats
from filewheel.message import Attempt, Message, MessageId
from filewheel.roster.roster import Member, Roster
from filewheel.runs.kills import Killed
from filewheel.runs.run import Ended, Kill, Place, Run, Running
from filewheel.wheel import OnConflict, Wheel

if _typing.TYPE_CHECKING:
    from filewheel.aio.keeper import AsyncKeeper
    from filewheel.aio.wheel import AsyncWheel
    from filewheel.firing.batch import Batch
    from filewheel.firing.purge import Purged, Unreached
    from filewheel.keeper import Keeper
    from filewheel.metrics.metrics import Metrics
    from filewheel.schedules.cron import Cron
    from filewheel.schedules.definition import StoredSchedule, schedule_of
    from filewheel.schedules.occurrences import PlainOccurrences
    from filewheel.schedules.plain import PlainSchedule
    from filewheel.schedules.recurrence import Every, Once
    from filewheel.scheduling.aio import AsyncScheduler
    from filewheel.scheduling.call import StoredCall, call_of
    from filewheel.scheduling.events import Event
    from filewheel.scheduling.handler import Handler
    from filewheel.scheduling.job import Job, current_job
    from filewheel.scheduling.outcome import GiveUp, Retry, RetryLater, history_of
    from filewheel.scheduling.own_terms import retry_of, timeout_of
    from filewheel.scheduling.runners.pool import Recycle
    from filewheel.scheduling.scheduler import Scheduler
    from filewheel.sets.compare import BackupCheck, Mismatch, verify_backups
    from filewheel.sets.link import LinkReport
    from filewheel.sets.members import add_backup, remove_backup
    from filewheel.sets.promote import Promotion, promote
    from filewheel.sets.rejoin import Rejoin, rejoin
    from filewheel.sets.replicator import Replicator
    from filewheel.sets.restore import Restored, restore
    from filewheel.sets.standby import Standby
    from filewheel.sets.status import MemberStatus, SetStatus, find_primary, set_status

__all__ = [
    "AsyncKeeper",
    "AsyncScheduler",
    "AsyncWheel",
    "Attempt",
    "BackupCheck",
    "BadArgument",
    "Batch",
    "CallFailed",
    "Cancelled",
    "CancelledIds",
    "Closed",
    "ClusterError",
    "Cron",
    "Damaged",
    "DiskError",
    "Ended",
    "Event",
    "Every",
    "Fenced",
    "FilewheelError",
    "Filter",
    "Forked",
    "GiveUp",
    "Handler",
    "Histogram",
    "Ids",
    "Job",
    "Keeper",
    "KeyHeld",
    "Kill",
    "Killed",
    "LinkReport",
    "Locked",
    "Member",
    "MemberStatus",
    "Message",
    "MessageId",
    "Metrics",
    "Mismatch",
    "MissingTopic",
    "NetworkFileSystem",
    "NewerFormat",
    "NoBroker",
    "NoWheel",
    "NotAllowed",
    "NotClaimed",
    "NotFound",
    "OnConflict",
    "Once",
    "OtherLoop",
    "Outlived",
    "Overdue",
    "Pause",
    "Pauses",
    "Place",
    "PlainOccurrences",
    "PlainSchedule",
    "Poisoned",
    "Promotion",
    "Purged",
    "ReadOnly",
    "Recycle",
    "Reentered",
    "Rejoin",
    "Replicator",
    "Restored",
    "ResultNotKept",
    "ResultTimeout",
    "Retry",
    "RetryLater",
    "Revived",
    "Roster",
    "Run",
    "Running",
    "Scheduler",
    "SetStatus",
    "Settlement",
    "Snapshot",
    "Standby",
    "Stats",
    "StoredCall",
    "StoredSchedule",
    "Sync",
    "TooFewCopies",
    "TooLarge",
    "TooManyTimers",
    "Unreached",
    "Unsafe",
    "Wheel",
    "WheelExists",
    "WheelFull",
    "WrongPlatform",
    "WrongSource",
    "__version__",
    "add_backup",
    "call_of",
    "current_job",
    "find_primary",
    "history_of",
    "promote",
    "rejoin",
    "remove_backup",
    "restore",
    "retry_of",
    "schedule_of",
    "set_status",
    "timeout_of",
    "verify_backups",
]

# Names from modules that are slow to import, or that a producer never uses: each is imported on first use.
_LATER = {
    "AsyncKeeper": "filewheel.aio.keeper",
    "AsyncScheduler": "filewheel.scheduling.aio",
    "AsyncWheel": "filewheel.aio.wheel",
    "BackupCheck": "filewheel.sets.compare",
    "Batch": "filewheel.firing.batch",
    "Cron": "filewheel.schedules.cron",
    "Event": "filewheel.scheduling.events",
    "Every": "filewheel.schedules.recurrence",
    "GiveUp": "filewheel.scheduling.outcome",
    "Handler": "filewheel.scheduling.handler",
    "Job": "filewheel.scheduling.job",
    "Keeper": "filewheel.keeper",
    "LinkReport": "filewheel.sets.link",
    "Metrics": "filewheel.metrics.metrics",
    "MemberStatus": "filewheel.sets.status",
    "Mismatch": "filewheel.sets.compare",
    "Once": "filewheel.schedules.recurrence",
    "PlainOccurrences": "filewheel.schedules.occurrences",
    "PlainSchedule": "filewheel.schedules.plain",
    "Promotion": "filewheel.sets.promote",
    "Purged": "filewheel.firing.purge",
    "Recycle": "filewheel.scheduling.runners.pool",
    "Rejoin": "filewheel.sets.rejoin",
    "Restored": "filewheel.sets.restore",
    "Replicator": "filewheel.sets.replicator",
    "Retry": "filewheel.scheduling.outcome",
    "RetryLater": "filewheel.scheduling.outcome",
    "Scheduler": "filewheel.scheduling.scheduler",
    "SetStatus": "filewheel.sets.status",
    "Standby": "filewheel.sets.standby",
    "StoredCall": "filewheel.scheduling.call",
    "StoredSchedule": "filewheel.schedules.definition",
    "Unreached": "filewheel.firing.purge",
    "add_backup": "filewheel.sets.members",
    "call_of": "filewheel.scheduling.call",
    "current_job": "filewheel.scheduling.job",
    "find_primary": "filewheel.sets.status",
    "history_of": "filewheel.scheduling.outcome",
    "promote": "filewheel.sets.promote",
    "rejoin": "filewheel.sets.rejoin",
    "restore": "filewheel.sets.restore",
    "remove_backup": "filewheel.sets.members",
    "retry_of": "filewheel.scheduling.own_terms",
    "schedule_of": "filewheel.schedules.definition",
    "set_status": "filewheel.sets.status",
    "timeout_of": "filewheel.scheduling.own_terms",
    "verify_backups": "filewheel.sets.compare",
}


def __getattr__(name: str) -> object:
    if name in _LATER:
        from importlib import import_module

        from filewheel.disk.forks import IMPORTS

        with IMPORTS:
            globals()[name] = found = getattr(import_module(_LATER[name]), name)
        return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
