"""Mends a damaged paused.json: the bytes go to quarantine/, and the whole wheel is paused.

What was paused is not known any more, and nothing of it may fire because of a repair. So a person decides: pauses again
what should not fire, and resumes the wheel.
Invariant: the wheel is paused before the damaged file is gone; only a foreign object is renamed first.
"""

from __future__ import annotations

import contextlib

from filewheel.disk.directory import Directory
from filewheel.disk.paused import change_pauses, read_pauses
from filewheel.disk.quarantine import NOT_FILE, Damage, Quarantine, is_foreign, put_aside
from filewheel.errors import Damaged
from filewheel.format import layout
from filewheel.format.pauses import Pause, Pauses
from filewheel.roster.roster import read_roster

_WHY = "a repair found paused.json damaged: pause again what should not fire, then resume the wheel"


def mend_pauses(directory: Directory, quarantine: Quarantine) -> list[str]:
    """Replace a damaged paused.json by a pause of the whole wheel; return reports. Raises OSError, FilewheelError."""
    try:
        read_pauses(directory.disk, directory.path)
        return []
    except Damaged as exc:
        what = exc.what
    done: list[str] = []
    epoch = 0
    if is_foreign(directory, layout.PAUSED):
        done.append(put_aside(directory, quarantine, layout.PAUSED, NOT_FILE))
    else:
        known = directory.disk.identity(layout.PAUSED)
        quarantine.keep(Damage(layout.PAUSED, 0, known[1] if known else 0, what, proven=True))
    now_us = directory.env.clock.now_us()
    with contextlib.suppress(Damaged):  # without a roster its copies in the set may seem newer: the replicator decides
        roster = read_roster(directory.disk, directory.path)
        epoch = 0 if roster is None else roster.epoch
    # The version is above that of the damaged file, which counted changes.
    paused = Pauses((Pause(since_us=now_us, why=_WHY),), epoch, version=now_us)
    change_pauses(directory, lambda _: paused, mend=True)
    return [*done, f"{layout.PAUSED} was damaged: the whole wheel is paused now, until `filewheel resume`"]
