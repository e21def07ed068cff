"""The oracle of kills and power cuts: what it says of an id that a keeper returned and nobody finds."""

from __future__ import annotations

import pytest

from tests.crash.marks import Mark
from tests.crash.verdict import Promises

OLD, NEW = "01983dcc60617660000000000000a482", "01983dcc61d3520000000000000008a4"
OTHER = "01983dcc64a4ab0000000000000a0492"


@pytest.mark.parametrize(
    ("tried", "pending", "lost"),
    [
        ([], {}, True),
        ([], {OTHER: (7, OLD)}, True),
        ([["try-end", 90, 90, "move", [OTHER]]], {OLD: (7, None)}, False),
        ([["try-end", 90, 90, "move", [OTHER]]], {}, True),
        ([["try-end", 90, 90, "move", [OTHER[:-1] + "3"]]], {OLD: (7, None)}, True),
        ([["try-end", 300, 300, "move", [OTHER]]], {OLD: (7, None)}, True),
    ],
)
def test_a_move_of_a_keeper_may_wait_only_while_another_process_has_the_lock(
    tried: list[Mark], pending: dict[str, tuple[int, str | None]], lost: bool
) -> None:
    due = int(OLD, 16) >> 70
    promises = Promises()
    promises.take({
        "0-Producer": [["try-put", 10, 10, [[7, due]]], ["put", 10, 20, [[7, OLD]], "always"], *tried],
        "1-KeeperActor": [["try-end", 99, 99, "move", [OLD]], ["move", 100, 200, OLD, NEW, "always"]],
    })  # fmt: skip
    promises.violations.clear()
    promises.ended.clear()
    promises.check_pending(pending, durable=True, context="")
    assert any("is lost" in text for text in promises.violations) == lost
