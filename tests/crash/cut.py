"""Campaign: power cuts of a journaling file system under real processes.

`FS_IOC_SHUTDOWN` stops a mounted ext4 or XFS from writing anything more; unmounting throws the page cache away, and
the next mount replays the file system's own journal, as after a real power cut. All writers are stopped first: a
flush that is under way when the power goes may still return (the kernel's doing), and a promise must not be
written down after the cut. A round is two to four lives of one wheel, each ended by a cut; after each cut what a
reader sees is compared with what was durable, and the next life goes on from there. The last one is drained.
"""

from __future__ import annotations

import contextlib
import random
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from filewheel.disk.directory import open_directory
from filewheel.format.settings import Sync
from filewheel.tools.verify import verify
from filewheel.wheel import Wheel
from tests.crash.actors import LAP_S, KeeperActor, Producer, quick
from tests.crash.campaign import Campaign, Tally
from tests.crash.cast import Cast
from tests.crash.images import LOG_FLUSHED, LOG_NOT_FLUSHED, Image, available, ends_cleanly, image, lacks, sizes
from tests.crash.kill import drain, left_over, pending_of
from tests.crash.marks import read_marks
from tests.crash.verdict import Promises

KINDS = ("ext4", "xfs")
ROLES = (Producer, Producer, KeeperActor)
SYNCS: tuple[Sync | None, ...] = ("always", "always", None, "never", None, "always", None, 0.02)
"""How the producers of a round enqueue; None is a mixture, call by call."""
INTERVAL_LATE_S = 0.35
"""How much later than its interval a flush may be on a busy machine."""


def play(number: int, tally: Tally, images: list[Image]) -> None:
    """Let one wheel live through some power cuts."""
    rng = random.Random(number)
    device = images[number // 2 % len(images)]
    sync = SYNCS[number // 4 % len(SYNCS)]
    path = device.mount_point / "jobs.wheel"
    promises = Promises()
    try:
        Wheel.create(path, slots=LAP_S).close()
        for life in range(rng.randrange(2, 5)):
            live(device, path, promises, rng, life, sync)
            tally.count(f"power cuts of {device.kind}")
            tally.count("power cuts")
            if promises.violations:
                break
        else:
            finish(path, promises, tally)
    finally:
        shutil.rmtree(path)
    tally.count("acknowledged", promises.acked)
    for text in promises.violations:
        tally.violation(f"{device.kind}, sync={sync}: {text}")


def live(device: Image, path: Path, promises: Promises, rng: random.Random, life: int, sync: Sync | None) -> None:
    """Let processes use the wheel, cut the power, and compare."""
    folder = Path(tempfile.mkdtemp(prefix="filewheel-cut-"))
    try:
        with Cast(path, folder, rng.random(), sync=sync, before=len(ROLES) * life) as cast:
            for role in ROLES:
                cast.start(role)
            late_s = rng.uniform(0.45, 0.7) if isinstance(sync, float) else 0
            time.sleep(late_s + rng.uniform(0.01, 0.25))
            cast.freeze(*cast.alive)
            stopped_ns = time.monotonic_ns()
            told = read_marks(folder)
            device.cut(LOG_FLUSHED if rng.random() < 0.15 else LOG_NOT_FLUSHED)
        device.umount()
        device.mount()
    finally:
        shutil.rmtree(folder)
    late_ns = round(((sync if isinstance(sync, float) else 0.02) + INTERVAL_LATE_S) * 1e9)
    promises.take(told, interval_ns=late_ns, at=stopped_ns)
    compare(path, promises)


def compare(path: Path, promises: Promises) -> None:
    """Compare what is there after a cut with what was durable, and go on from it."""
    pending = pending_of(path)
    promises.check_pending(pending, durable=True, context="after the cut")
    promises.power_cut(pending)
    directory = open_directory(path, write=False)
    for finding in verify(directory).damage:
        promises.broken(f"after the cut: verify says {finding}")
    directory.disk.release()
    kept = proven_in_quarantine(path)
    if kept:
        promises.broken(f"after the cut: quarantine holds {kept}")


def proven_in_quarantine(path: Path) -> list[str]:
    """Name what was set aside as damage: of what was never durable, a cut may leave something."""
    notes = sorted(path.glob("quarantine/*.json"))
    return [note.name for note in notes if b'"proven": true' in note.read_bytes()]


def finish(path: Path, promises: Promises, tally: Tally) -> None:
    """Fire what is left; then nothing but dead letters may be there."""
    folder = Path(tempfile.mkdtemp(prefix="filewheel-cut-"))
    try:
        with Cast(path, folder, "drain") as cast:
            drained = drain(cast, tally)
        promises.take(read_marks(folder))
    finally:
        shutil.rmtree(folder)
    if drained:
        promises.check_drained(pending_of(path))
        for text in left_over(path):
            promises.broken(text)


@contextlib.contextmanager
def rig() -> Iterator[list[Image]]:
    """Mount one file system of each kind that there is."""
    with ExitStack() as stack:
        stack.enter_context(ends_cleanly())
        images = [stack.enter_context(image(kind, sizes(kind))) for kind in available(*KINDS)]
        stack.enter_context(quick())
        yield images


CAMPAIGN = Campaign(
    name="cut",
    title="power cuts of ext4 and XFS under real processes",
    play=play,
    share=0.09,
    targets={"power cuts": 2_000},
    rig=rig,
    missing=lambda: lacks(*KINDS),
    short=2,
)
