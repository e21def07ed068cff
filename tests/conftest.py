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
    "kafka/test_two_releases.py", "crash/test_short.py", "kafka/test_rights.py", "project/test_docs.py",
    "kafka/test_cli_kafka.py", "scheduling/runners/test_pool.py", "kafka/test_unclean_election.py",
    "kafka/test_full_disk_broker.py", "cli/test_main_examples.py", "kafka/test_call_broker.py",
    "kafka/test_confluent.py", "scheduling/test_scheduler_takeover.py", "kafka/test_retention_broker.py",
    "kafka/test_broker.py", "cli/test_work.py", "kafka/test_anew_broker.py",
    "project/test_web_frameworks.py", "cli/test_demo.py", "test_wheel_inherited_state.py", "kafka/test_producers.py",
    "cli/test_reload.py", "kafka/test_bench.py", "project/test_examples.py", "model/test_model.py",
    "project/test_suite.py", "cli/test_backup.py", "crash/test_runner.py", "crash/test_mutants.py",
    "bench/jobs/test_jobs.py", "bench/test_harness.py", "cli/test_notify.py", "keys/test_unique.py",
    "cli/test_run.py", "native/test_loops_sanitized.py", "project/test_dist.py", "model/test_promotions.py",
    "scheduling/test_scheduler_kill.py", "live/test_web_page.py", "laps/test_deal_anew.py", "project/test_typing.py",
    "cli/test_run_schedules.py", "sets/test_link_away.py", "aio/test_wheel.py",
]  # fmt: skip
"""The files that take longest, which begin first: one that begins last leaves all cores but one idle.

Those that wait for a broker are among those that compute, so that no core is idle while they wait.
"""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    first = {Path(__file__).parent / name: n for n, name in enumerate(LONG)}
    items.sort(key=lambda item: first.get(item.path, len(LONG)))


def pytest_collection() -> None:
    """Look for no garbage while ten thousand tests are collected, in each worker: there is next to none."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Leave what was imported and collected out of every later collection of garbage: a full one took 0.3 seconds."""
    gc.enable()
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
