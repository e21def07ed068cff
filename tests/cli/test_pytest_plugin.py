"""The pytest plugin, in runs of pytest of their own."""

from __future__ import annotations

import importlib
import tomllib

import pytest

from tests.support import REPO

pytest_plugins = ["pytester"]

APP = """
from filewheel import AsyncScheduler, Scheduler

scheduler = Scheduler("/nonexistent/jobs.wheel", create=False)
async_scheduler = AsyncScheduler("/nonexistent/jobs.wheel", create=False)
sent = []


@scheduler.on()
def remind(name):
    sent.append(name)


@async_scheduler.on()
async def remind_soon(name):
    sent.append(name)
"""


@pytest.fixture
def run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    monkeypatch.setenv("PYTHONPATH", f"{REPO}")
    pytester.makepyfile(app=APP)
    pytester.makeini("[pytest]\nfilterwarnings = error\n")
    return pytester


def passes(run: pytest.Pytester, text: str, count: int) -> None:
    run.makepyfile(test_it=text)
    result = run.runpytest_subprocess("-p", "no:filewheel", "-p", "cli.pytest_plugin", "-p", "no:cacheprovider")
    result.assert_outcomes(passed=count)


def test_the_scheduler_of_a_module_is_on_the_wheel_and_the_clock_of_each_test(run: pytest.Pytester) -> None:
    passes(
        run,
        """
        import app
        import pytest
        from filewheel import NoWheel
        from filewheel.testing import advance


        @pytest.mark.parametrize("n", [1, 2])
        def test_each_test_begins_with_an_empty_wheel(filewheel_scheduler, filewheel_clock, n):
            scheduler = filewheel_scheduler(app.scheduler)
            assert scheduler is app.scheduler
            assert scheduler.wheel.stats().pending == 0
            app.remind.after(3600, f"ann{n}")
            assert advance(scheduler, filewheel_clock, 3600) == 1
            assert app.sent[-1] == f"ann{n}"


        def test_afterwards_it_is_as_it_was():
            with pytest.raises(NoWheel):
                app.remind.after(0, "bob")


        def test_several_schedulers_share_the_clock(filewheel_scheduler, filewheel_clock):
            one, two = filewheel_scheduler(), filewheel_scheduler()
            assert one.path != two.path
            two.on("remind")(app.sent.append)
            two.enqueue("remind", ["cleo"], delay=60)
            assert advance(one, filewheel_clock, 60) == 0
            assert two.drain() == 1
        """,
        4,
    )


def test_an_async_scheduler_of_a_module_is_redirected_too(run: pytest.Pytester) -> None:
    passes(
        run,
        """
        import asyncio
        import app
        from filewheel.testing import advance


        def test_it(filewheel_scheduler, filewheel_clock):
            scheduler = filewheel_scheduler(app.async_scheduler)

            async def main():
                await app.remind_soon.after(60, "ann")
                await advance(scheduler, filewheel_clock, 60)
                await scheduler.stop()

            asyncio.run(main())
            assert app.sent == ["ann"]
        """,
        1,
    )


def test_without_the_fixtures_nothing_of_the_library_is_imported(run: pytest.Pytester) -> None:
    passes(
        run,
        """
        import sys


        def test_it():
            assert "cli.pytest_plugin" in sys.modules
            assert not [name for name in sys.modules if name.partition(".")[0] in ("filewheel", "click", "msgpack")]
        """,
        1,
    )


def test_the_entry_point_names_the_plugin() -> None:
    project = tomllib.loads((REPO / "pyproject.toml").read_text())
    (target,) = project["project"]["entry-points"]["pytest11"].values()
    directories = project["tool"]["setuptools"]["package-dir"]
    package, _, module = target.partition(".")
    assert hasattr(importlib.import_module(f"{directories[package]}.{module}"), "filewheel_scheduler")
