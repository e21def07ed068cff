"""Fixtures that every test may use. A wheel that a test used is verified when the test ends."""

from __future__ import annotations

import gc
import logging
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import hypothesis
import pytest

from filewheel import Keeper, Wheel
from filewheel.disk.directory import open_directory
from filewheel.tools.verify import verify
from tests.support import FakeClock, seeds

if TYPE_CHECKING:
    from tests.cli.support import Fw

LONG = [
    "crash/test_short.py", "project/test_docs.py", "cli/test_backup.py", "cli/test_main_examples.py",
    "sets/test_link_away.py", "scheduling/test_scheduler_takeover.py", "model/test_model.py", "cli/test_work.py",
    "scheduling/test_scheduler_crash.py",
    "replication/test_sets_at_random.py", "scheduling/runners/test_pool.py", "cli/test_demo.py", "cli/test_run.py",
    "replication/test_link.py", "crash/test_runner.py", "bench/jobs/test_jobs.py", "keys/test_unique.py",
    "aio/test_wheel.py",
    "crash/test_mutants.py", "cli/test_notify.py",
    "schedules/test_plain_crash.py", "cli/test_run_schedules.py", "project/test_dist.py",
    "laps/test_deal_anew.py",
]  # fmt: skip
"""The files that take longest, which begin first: one that begins last leaves all cores but one idle."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    first = {Path(__file__).parent / name: n for n, name in enumerate(LONG)}
    items.sort(key=lambda item: first.get(item.path, len(LONG)))


def pytest_collection_finish() -> None:
    """Leave what was imported and collected out of every later collection of garbage: a full one took 0.3 seconds."""
    gc.collect()
    gc.freeze()


def pytest_report_header() -> str:
    import msgpack

    return f"msgpack {msgpack.version}, uid {os.geteuid()}"


def assert_whole(path: Path) -> None:
    """Assert that nothing in a wheel is damaged, and that nothing was put in quarantine."""
    report = verify(open_directory(path, write=False))
    assert not report.damage, report.damage
    kept = sorted(os.listdir(path / "quarantine"))
    assert not kept, kept


@pytest.fixture(autouse=True)
def logs_as_before() -> Iterator[None]:
    """A test that silences the log for good makes others fail that read it, in whichever process runs them."""
    yield
    loud = [name for name in ("filewheel", "filewheel.kafka", "cli") if logging.getLogger(name).level]
    assert not loud, f"the log of {loud} is silent after this test"
    assert not logging.root.manager.disable, "the log is silent after this test"


@pytest.fixture
def wheel_dir(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """An empty wheel; verified at the end unless the test says that it damaged it (marker `damages`)."""
    path = tmp_path / "jobs.wheel"
    Wheel.create(path).close()
    yield path
    if request.node.get_closest_marker("damages") is None:
        assert_whole(path)


@pytest.fixture
def clock() -> FakeClock:
    """A clock that moves only when told to."""
    return FakeClock()


@pytest.fixture
def wheel(wheel_dir: Path, request: pytest.FixtureRequest) -> Iterator[Wheel]:
    """An open wheel; on the clock of the test, if it has one."""
    clock = request.getfixturevalue("clock") if "clock" in request.fixturenames else None
    with Wheel(wheel_dir, clock=clock) as opened:
        yield opened


@pytest.fixture
def keeper(wheel_dir: Path, clock: FakeClock) -> Iterator[Keeper]:
    """The keeper of that wheel, without a thread."""
    with Keeper(wheel_dir, clock=clock, background=False) as opened:
        yield opened


@pytest.fixture
def fw(wheel_dir: Path) -> Fw:
    """The command line with that wheel."""
    from tests.cli.support import Fw

    return Fw(wheel_dir)


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A file system of 8 MiB."""
    mount = tmp_path / "small"
    mount.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=8m,mode=0700", "tmpfs", mount], capture_output=True, check=False
    )
    if done.returncode:
        pytest.skip(f"cannot mount: {done.stderr.decode().strip()}")
    yield mount
    subprocess.run(["umount", "-l", mount], check=True)


def pytest_configure(config: pytest.Config) -> None:
    # How long an example takes says more about the machine than about the code.
    hypothesis.settings.register_profile(
        "filewheel",
        deadline=None,
        suppress_health_check=[hypothesis.HealthCheck.too_slow],
        max_examples=seeds(40, all_of=100).stop,
    )
    hypothesis.settings.load_profile("filewheel")
    # A thousand processes are started: each would compile the library again where no bytecode may be written beside it.
    if os.environ.pop("PYTHONDONTWRITEBYTECODE", None):
        kept = os.environ["PYTHONPYCACHEPREFIX"] = tempfile.mkdtemp(prefix="filewheel-bytecode-")
        config.add_cleanup(lambda: shutil.rmtree(kept, ignore_errors=True))
    # A shell starts what it puts into the background with SIGINT ignored, and children inherit that; the tests of
    # Ctrl-C are about a process that does not.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
