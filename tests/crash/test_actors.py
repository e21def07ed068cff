"""What the actors of the campaigns promise, where it is not what a call returned alone."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest

from filewheel import Keeper, Message, Wheel
from filewheel.disk import locks
from tests.crash.actors import KeeperActor
from tests.crash.marks import Marks, body, read_marks
from tests.crash.verdict import Promises


@pytest.fixture
def actor(tmp_path: Path, wheel_dir: Path) -> KeeperActor:
    (tmp_path / "marks").mkdir()
    return KeeperActor(wheel_dir, Marks(tmp_path / "marks" / "1-KeeperActor"), random.Random(1), 0, time.monotonic())


def claimed(actor: KeeperActor, keeper: Keeper) -> Message:
    """Claim the one message, and say so."""
    (message,) = actor.claim(keeper, 10)
    return message


@pytest.mark.parametrize("dead", [False, True], ids=["retried", "buried"])
def test_a_move_that_waits_for_a_lock_is_not_promised_and_the_next_keeper_offers_what_it_was(
    actor: KeeperActor, tmp_path: Path, wheel_dir: Path, dead: bool
) -> None:
    with Wheel(wheel_dir) as wheel:
        actor.marks.tell("try-put", [[7, 0]])
        id_ = wheel.enqueue(body(7), at=0)
        actor.marks.tell("put", [[7, id_.hex()]], "always")
        keeper = Keeper(wheel_dir, background=False)
        message = claimed(actor, keeper)
        with locks.holding_ids(keeper.directory, [id_]):  # a producer that was stopped in the middle of a reschedule
            actor.move(keeper, message, random.Random(1), dead=dead)
            keeper.close()
        with Keeper(wheel_dir, background=False) as successor:
            actor.move(successor, claimed(actor, successor), random.Random(2), dead=dead)
        marks = read_marks(tmp_path / "marks")["1-KeeperActor"]
        assert [m[0] for m in marks] == ["try-put", "put", "fire", "try-end", "fire", "try-end", "move"]
        promises = Promises()
        promises.take({"1-Keeper": marks[:4], "2-Keeper": marks[4:]})
        assert not promises.violations
