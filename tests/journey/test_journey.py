"""The way of a message is as long as its budget says, and the budgets are what they say."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.journey import __main__ as journey
from tests.journey.trace import Row, Trace, row_of
from tests.support import REPO

HERE = {"step": Row(100, 50, 10, 1000)}


def figures() -> dict[str, Row]:
    """The figures of this tree, from a process of its own: the loops are chosen when the library is imported."""
    env = {**os.environ, "FILEWHEEL_PURE": "1", "PYTHONHASHSEED": "0"}
    command = [sys.executable, "-m", "tests.journey", "--figures"]
    done = subprocess.run(command, cwd=REPO, env=env, capture_output=True, text=True, check=True)
    return journey.read(done.stdout)


def test_no_step_is_longer_than_its_budget_and_no_budget_is_left_high() -> None:
    wrong = journey.judged(figures(), journey.read(journey.BUDGETS.read_text(encoding="utf-8")))
    assert not wrong, "\n".join(wrong)


def test_the_table_is_read_as_it_is_written() -> None:
    text = journey.BUDGETS.read_text(encoding="utf-8")
    assert journey.table(journey.read(text)) == text


@pytest.mark.parametrize(
    ("now", "said"),
    [
        (Row(101, 50, 10, 1000), "write an ADR"),
        (Row(100, 51, 10, 1000), "write an ADR"),
        (Row(100, 50, 11, 1000), "write an ADR"),
        (Row(100, 50, 10, 1100), "write an ADR"),
        (Row(97, 50, 10, 1000), "--lower"),
        (Row(100, 50, 9, 1000), "--lower"),
    ],
)
def test_a_figure_above_or_far_below_its_budget_is_named(now: Row, said: str) -> None:
    (wrong,) = journey.judged({"step": now}, HERE)
    assert said in wrong


def test_a_step_without_a_budget_and_a_budget_without_a_step_are_named() -> None:
    assert journey.judged({"new": Row(1, 1, 1, 100)}, {})
    assert journey.judged({}, HERE)
    assert not journey.judged(HERE, HERE)


def test_lowering_raises_nothing_and_forgets_a_step_that_is_gone() -> None:
    now = {"step": Row(90, 60, 10, 900)}
    assert journey.lowered(now, {**HERE, "gone": Row(1, 1, 1, 1)}) == {"step": Row(90, 50, 10, 900)}


def test_a_trace_has_the_calls_of_the_library_alone_and_in_order() -> None:
    from filewheel.checks import check_whole

    with Trace() as trace:
        len("not of the library")
        check_whole("count", 3)
        check_whole("count", 4)
    names = [call.function.name for call in trace.calls]
    assert names[0] == "check_whole"
    assert names.count("check_whole") == 2
    row = row_of(trace.calls)
    assert (row.calls, row.functions, row.files) == (len(names), len(set(names)), 1)
    assert row.lines == (REPO / "filewheel" / "checks.py").read_text().count("\n")
