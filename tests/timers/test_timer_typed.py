"""What a type checker makes of the timers: the arguments of a function are checked where it is scheduled."""

from __future__ import annotations

from pathlib import Path

from tests.project.support_typing import check


def test_the_arguments_of_a_scheduled_function_are_checked_and_its_result_is_known(tmp_path: Path) -> None:
    check(
        tmp_path,
        """
from concurrent.futures import Executor, Future
from datetime import timedelta

from filewheel.timers import DelayQueue, HashedUnordered, ScheduledExecutor, Scheme, Timer, UnorderedList


def join(left: str, *, right: int) -> str:
    return f"{left}{right}"


executor: Executor = ScheduledExecutor()
scheduled = ScheduledExecutor(2)
text: str = scheduled.schedule(1.5, join, "a", right=1).result()
future: Future[str] = scheduled.submit(join, "a", right=1)
periodic: Future[None] = scheduled.schedule_at_fixed_rate(0, timedelta(seconds=1), join, "a", right=1)
number: int = scheduled.schedule(1, join, "a", right=1).result()  # wrong: assignment
scheduled.schedule(1, join, "a", right="1")  # wrong: arg-type
scheduled.schedule(1, join)  # wrong: call-arg
Timer().call_later(1, join, 5, right=1)  # wrong: arg-type
Timer(HashedUnordered, tick=0.1, slots=512).call_later(1, join, "a", right=1).cancel()
Timer(HashedUnordered).call_later("1", join, "a", right=1)  # wrong: arg-type
Timer().call_every(1, join, "a", wrong=1)  # wrong: call-arg
queue: DelayQueue[int] = DelayQueue()
taken: int | None = queue.poll(1)
queue.put("text")  # wrong: arg-type
scheme: Scheme[str] = UnorderedList()
scheme.start(5, "item").item.upper()
scheme.start(5.0, "item")  # wrong: arg-type
""",
    )
