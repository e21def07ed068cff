"""Where is measured: an ext4 with a journal and an XFS, each in an image on a loop device, and a plain directory.

An image on a loop device gives every machine the same file systems, and leaves the root's mount options (a missing
journal, synchronous discard) out of the figures. Invariant: what was mounted here is unmounted and removed again.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from tests.bench.store import Missing

IMAGE_BYTES = 24 << 30
"""Sparse: it takes only what is written."""
WARM_BYTES = 1 << 30
MAKE = {"ext4": ["mkfs.ext4", "-qF", "-E", "nodiscard"], "xfs": ["mkfs.xfs", "-qf", "-K"]}


@contextlib.contextmanager
def place(name: str, base: Path) -> Iterator[Path]:
    """Give a directory on the file system of this name: "ext4", "xfs", or "plain" for the one that `base` is on.

    Raises Missing when this machine cannot mount one.
    """
    home = Path(tempfile.mkdtemp(prefix=f"filewheel-bench-{name}-", dir=base))
    try:
        if name == "plain":
            yield home
        else:
            with _mounted(name, home) as mount:
                yield mount
    finally:
        shutil.rmtree(home, ignore_errors=True)


@contextlib.contextmanager
def _mounted(name: str, home: Path) -> Iterator[Path]:
    if name not in MAKE:
        raise Missing(f"no file system {name!r}; there are {', '.join(MAKE)} and plain")
    if os.geteuid() != 0:
        raise Missing("mounting an image needs root")
    image, mount = home / "image", home / "mount"
    mount.mkdir()
    with image.open("wb") as file:
        file.truncate(IMAGE_BYTES)
    for command in ([*MAKE[name], str(image)], ["mount", "-o", "loop", str(image), str(mount)]):
        if shutil.which(command[0]) is None:
            raise Missing(f"{command[0]} is not installed")
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise Missing(f"{command[0]}: {done.stderr.strip()}")
    try:
        _warm(mount / "work")
        yield mount
    finally:
        _unmount(mount)


def _warm(directory: Path) -> None:
    """Have the image's first blocks be there: the first cell would else pay for what the others find."""
    directory.mkdir()
    with (directory / "zeros").open("wb") as file:
        for _ in range(WARM_BYTES >> 20):
            file.write(bytes(1 << 20))
        os.fsync(file.fileno())
    (directory / "zeros").unlink()


def _unmount(mount: Path) -> None:
    """Unmount, waiting a little for processes that are about to end; detach what will not go."""
    for _ in range(50):
        if subprocess.run(["umount", str(mount)], capture_output=True).returncode == 0:
            return
        time.sleep(0.1)
    subprocess.run(["umount", "--lazy", str(mount)], check=True)
