"""The judge of sets, with logs made by hand: those of a set that kept its promises, and those of one that did not."""

from __future__ import annotations

from typing import Any

import pytest

from tests.crash.marks import Mark
from tests.crash.verdict_set import Policy, S, judge

MIRROR = Policy("mirror", "stale", timeout_s=1.0, slack_s=0.5)
SHIP = Policy("ship", lag_s=1.0, slack_s=0.5)


class Log:
    """Marks of a conductor, a producer and a keeper, at times in seconds."""

    def __init__(self, primary: str = "A") -> None:
        self.marks: dict[str, list[Mark]] = {"conductor": [], "producer": [], "keeper": [], "keeper 2": []}
        self.tell("conductor", "primary", 0, primary)

    def tell(self, who: str, kind: str, at: float, *what: Any, took: float = 0.0) -> Log:
        self.marks[who].append([kind, round((at - took) * S), round(at * S), *what])
        return self

    def put(self, serial: int, at: float, *, copies: int = 2, path: str = "A", took: float = 0.001) -> Log:
        self.tell("producer", "try-put", at - took, [[serial, 0]])
        return self.tell("producer", "put", at, [[serial, f"{serial:02x}"]], copies, path, took=took)

    def refused(self, serial: int, at: float, error: str = "DiskError") -> Log:
        self.tell("producer", "try-put", at, [[serial, 0]])
        return self.tell("producer", "refused", at, serial, error, "A")

    def fire(self, serial: int, at: float, *, path: str = "A", who: str = "keeper", now_us: int = 1) -> Log:
        return self.tell(who, "fire", at, now_us, [[serial, f"{serial:02x}", 0]], path, took=0.001)

    def ack(self, serial: int, at: float, *, path: str = "A", who: str = "keeper") -> Log:
        self.tell(who, "try-ack", at - 0.001, [serial], path)
        return self.tell(who, "ack", at, [serial], path)

    def disaster(self, at: float, name: str = "deleted", path: str = "A", *, loses: bool = True) -> Log:
        return self.tell("conductor", "disaster", at, name, path, loses)

    def undone(self, at: float, path: str = "A") -> Log:
        return self.tell("conductor", "undone", at, path)

    def promoted(self, at: float, new: str = "B", old: str = "A", *, took: float = 0.2) -> Log:
        return self.tell("conductor", "promoted", at, new, old, took=took)


def test_a_set_that_keeps_its_promises_is_not_accused() -> None:
    log = Log()
    log.put(1, 1).fire(1, 2).ack(1, 2.1)
    log.put(2, 2).put(3, 2.5)
    log.disaster(3).refused(4, 3.1, "NoWheel").promoted(4)
    log.put(5, 4.1, path="B").fire(2, 4.2, path="B").fire(5, 4.3, path="B")
    assert judge(log.marks, {3}, MIRROR) == []


def test_a_message_with_two_copies_that_is_nowhere_is_lost() -> None:
    log = Log().put(1, 1).disaster(2).promoted(3)
    (said,) = judge(log.marks, set(), MIRROR)
    assert said == "1 was acknowledged with 2 copies, and neither fired nor waits"


def test_a_message_that_was_refused_may_be_nowhere_and_may_fire() -> None:
    log = Log().disaster(2).refused(1, 2.1).refused(2, 2.2).promoted(3).put(3, 3.1, path="B").fire(1, 4, path="B")
    assert judge(log.marks, {3}, MIRROR) == []


def test_a_message_with_one_copy_may_go_with_its_disk_and_not_without_a_disaster() -> None:
    log = Log().put(1, 2.1, copies=1)
    assert judge(log.marks, set(), MIRROR)
    assert judge(log.disaster(2).promoted(3).marks, set(), MIRROR) == []


def test_a_message_with_one_copy_may_not_go_where_nothing_was_lost_or_everything_was_read() -> None:
    log = Log().put(1, 2.1, copies=1)
    assert judge(log.disaster(2, "unmounted", loses=False).promoted(3).marks, set(), SHIP)
    log = Log().put(1, 2.1, copies=1).disaster(2, "dead").tell("conductor", "promoted", 3, "B", "A", True)
    assert judge(log.marks, set(), SHIP)


def test_what_was_told_while_no_replicator_was_at_work_may_go() -> None:
    log = Log().put(1, 1.5, copies=1).disaster(5).promoted(6)
    log.tell("conductor", "replicator", 0, True).tell("conductor", "replicator", 1, False)
    assert judge(log.marks, set(), SHIP) == []
    assert judge(log.tell("conductor", "replicator", 3, True).marks, set(), SHIP) == []
    log.marks["conductor"][-1][2] = round(1.5 * S)  # it has had the time to start since
    assert judge(log.marks, set(), SHIP)


def test_with_shipping_only_what_was_younger_than_the_lag_may_go() -> None:
    log = Log().put(1, 1, copies=1).put(2, 4.5, copies=1).disaster(5).promoted(6)
    (said,) = judge(log.marks, set(), SHIP)
    assert said.startswith("1 was acknowledged")


def test_what_was_claimed_and_not_acknowledged_may_fire_again_elsewhere() -> None:
    log = Log().put(1, 1).fire(1, 2).disaster(3).promoted(4).fire(1, 5, path="B", who="keeper 2")
    assert judge(log.marks, set(), MIRROR) == []


def test_what_was_acknowledged_long_before_a_promotion_may_not_fire_again() -> None:
    log = Log().put(1, 1).fire(1, 2).ack(1, 2.1).disaster(4).promoted(5).fire(1, 6, path="B", who="keeper 2")
    (said,) = judge(log.marks, set(), MIRROR)
    assert said == "1 fired again in B, 3.900 s after its ack"
    assert judge(log.marks, set(), Policy("ship", lag_s=2.0)) == []


def test_what_was_acknowledged_may_not_fire_again_in_the_same_wheel_unless_that_lost_the_drop() -> None:
    log = Log().put(1, 1).fire(1, 2).ack(1, 2.1).fire(1, 6, who="keeper 2")
    assert judge(log.marks, set(), MIRROR) == ["1 fired again in A, 3.900 s after its ack"]
    assert judge(log.disaster(3, "corrupted").marks, set(), MIRROR) == []


def test_a_message_that_waits_after_its_acknowledgement_is_named() -> None:
    log = Log().put(1, 1).fire(1, 2).ack(1, 2.1)
    assert judge(log.marks, {1}, MIRROR) == ["1 waits in the primary, and was acknowledged"]


def test_one_keeper_never_hands_out_what_it_has_claimed() -> None:
    log = Log().put(1, 1).fire(1, 2).fire(1, 3)
    assert judge(log.marks, set(), MIRROR) == ["1 was handed out twice by one keeper, keeper"]
    assert judge(log.tell("keeper", "own", 2.5, "A").marks, set(), MIRROR) == []


def test_the_old_primary_fires_nothing_once_another_was_promoted() -> None:
    log = Log().put(1, 1).put(2, 1.1).promoted(3).fire(1, 2.9995).fire(2, 3.5)
    (said,) = judge(log.marks, set(), MIRROR)
    assert said == "2 fired in A, 0.499 s after B was promoted"


@pytest.mark.parametrize(
    ("policy", "until", "wrong"),
    [
        (MIRROR, 3.4, False),
        (MIRROR, 3.6, True),
        (Policy("mirror", "refuse", slack_s=0.5), 5.9, False),
        (SHIP, 2.1, True),
    ],
)
def test_a_mirror_that_fails_holds_up_enqueues_for_as_long_as_the_policy_says(
    policy: Policy, until: float, wrong: bool
) -> None:
    log = Log().put(1, 1).disaster(2, "read-only", "B", loses=False).refused(2, until, "TooFewCopies")
    log.undone(6, "B").put(3, 7)
    assert bool(judge(log.marks, {1, 3}, policy)) is wrong


def test_a_refusal_without_any_disaster_is_named() -> None:
    log = Log().refused(1, 1).put(2, 2)
    assert judge(log.marks, {2}, MIRROR) == ["producer was refused (DiskError) before anything had happened"]


def test_a_set_that_serves_nobody_after_a_promotion_is_named() -> None:
    log = Log().put(1, 1).disaster(2).refused(2, 2.5).promoted(3).tell("conductor", "quiet", 5)
    assert judge(log.marks, {1}, MIRROR) == ["nobody was served within 1.2 s 1.000 s after A was deleted"] * 2
    assert judge(log.put(3, 4, path="B").marks, {1, 3}, MIRROR) == []


def test_an_enqueue_that_takes_longer_than_the_time_out_is_named() -> None:
    log = Log().put(1, 9, took=5)
    assert judge(log.marks, {1}, MIRROR) == ["an enqueue of producer took 5.0 s"]


def test_what_fires_early_and_what_nobody_enqueued_are_named() -> None:
    log = Log().put(1, 1)
    log.marks["producer"][0][3] = [[1, 500]]
    log.fire(1, 2, now_us=400).fire(9, 2, now_us=400)
    assert judge(log.marks, set(), MIRROR) == [
        "1 fired 100 µs early (its id says 0)",
        "9 fired, which nobody enqueued",
    ]


def test_what_a_process_says_must_not_happen_is_passed_on() -> None:
    log = Log().tell("keeper", "error", 1, "a bare OSError")
    log.tell("keeper 2", "ack", 2, [7], "A")
    assert judge(log.marks, set(), MIRROR) == [
        "keeper: a bare OSError",
        "keeper 2 acknowledged 7, which it was not handed",
    ]


def test_what_was_acknowledged_just_before_a_power_cut_may_fire_again_and_nothing_older() -> None:
    log = Log().put(1, 1).fire(1, 2).ack(1, 2.1).fire(1, 6, who="keeper 2")
    assert judge(log.tell("conductor", "power cut", 2.2).marks, set(), MIRROR) == []
    log = Log().put(1, 1).fire(1, 2).ack(1, 2.1).fire(1, 6, who="keeper 2")
    assert len(judge(log.tell("conductor", "power cut", 3.0).marks, set(), MIRROR)) == 1


def test_what_a_power_cut_took_from_a_backup_may_fire_again_there_until_it_was_compared() -> None:
    for cut, count in ((1.5, 0), (2.2, 0), (3.0, 1)):  # acknowledged after it, just before it, and well before it
        log = Log().put(1, 1).fire(1, 2).ack(1, 2.1).tell("conductor", "power cut", cut)
        log.disaster(7).promoted(8).fire(1, 9, path="B", who="keeper 2")
        assert len(judge(log.marks, set(), MIRROR)) == count
    log = Log().put(1, 1).fire(1, 2).ack(1, 2.1).tell("conductor", "power cut", 1.5)
    log.disaster(17).promoted(18).fire(1, 19, path="B", who="keeper 2")
    assert len(judge(log.marks, set(), MIRROR)) == 1
