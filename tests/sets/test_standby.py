"""The standby: it promotes when the primary has failed without a break, and never in the place of one that is well."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from filewheel.disk.directory import open_directory
from filewheel.disk.disk import SYSTEM, OsDisk
from filewheel.errors import BadArgument
from filewheel.roster.roster import change_roster
from filewheel.sets import peers
from filewheel.sets.promote import Promotion, promote
from filewheel.sets.standby import Standby
from tests.sets.support_sets import Place, in_thread, place, role_of
from tests.support import FakeClock, FaultyDisk, eventually, lose

__all__ = ["place"]

AFTER_S = 120.0
"""Longer than any probe takes, however busy the machine is: a primary that is silent for so long is lost."""
LOOKS = 8
"""The looks in so long, if the time passes by itself."""


class Watch:
    """A standby in a thread. Its time passes with each look, or, with `passes_s=0`, when `clock` is moved."""

    def __init__(
        self,
        path: Path,
        disk: Callable[[str], OsDisk] = OsDisk,
        after_s: float = AFTER_S,
        passes_s: float = AFTER_S / LOOKS,
    ) -> None:
        self.clock = FakeClock()
        self.standby = Standby(path, after_s=after_s, env=SYSTEM.using(disk=disk, clock=self.clock))
        self.said: list[str] = []
        self.result: list[Promotion | Exception | None] = []
        self.looked = 0
        """How often it has looked and said what it found."""

        def rest() -> None:
            self.looked += 1
            self.clock.advance(passes_s)
            time.sleep(0.005)

        self.standby._rest = rest  # type: ignore[method-assign]
        self.thread = in_thread(self._run)

    def _run(self) -> None:
        try:
            self.result.append(self.standby.run(self.said.append))
        except Exception as exc:
            self.result.append(exc)

    def end(self) -> Promotion | Exception | None:
        """Wait for its end."""
        self.thread.join(120)
        (result,) = self.result
        return result


@contextmanager
def watching(
    path: Path,
    disk: Callable[[str], OsDisk] = OsDisk,
    after_s: float = AFTER_S,
    passes_s: float = AFTER_S / LOOKS,
) -> Iterator[Watch]:
    watch = Watch(path, disk, after_s, passes_s)
    try:
        yield watch
    finally:
        watch.standby.stop()
        watch.thread.join(120)
        assert not watch.thread.is_alive()


def looks(watch: Watch, count: int = 2 * LOOKS) -> None:
    """Wait until the standby has looked some times more, or has ended."""
    end = watch.looked + count
    eventually(lambda: watch.looked >= end or watch.result, 120)


@pytest.mark.parametrize("how", ["deleted", "another wheel"])
def test_a_primary_that_is_gone_is_replaced_and_what_was_shipped_fires(place: Place, how: str) -> None:
    place.make_set(place.b)
    place.enqueue(place.a, "x")
    place.level(place.a)
    with watching(place.b) as watch:
        eventually(lambda: watch.thread.is_alive())
        lose(place.a)
        if how == "another wheel":
            place.make(place.a)
        done = watch.end()
    assert isinstance(done, Promotion)
    assert (done.epoch, role_of(place.b)) == (2, "primary")
    assert watch.said[-1] == f"promoting {place.b}"
    assert place.fire(place.b) == ["x"]


@pytest.mark.parametrize(
    ("kind", "code"), [("open", 30), ("pwrite", 28), ("fdatasync", 5)], ids=["read-only", "full", "fsync fails"]
)
def test_a_primary_whose_disk_takes_nothing_any_more_is_replaced(place: Place, kind: str, code: int) -> None:
    place.make_set(place.b)
    bad = threading.Event()

    def disk(path: str) -> OsDisk:
        def fail(what: str, name: str) -> None:
            if bad.is_set() and path == str(place.a) and what == kind and name == "probe":
                raise OSError(code, os.strerror(code))

        return FaultyDisk(path, fail)

    with watching(place.b, disk) as watch:
        looks(watch)
        assert role_of(place.b) == "backup"
        bad.set()
        assert isinstance(watch.end(), Promotion)
    assert any(os.strerror(code) in said for said in watch.said)
    assert (role_of(place.a), role_of(place.b)) == ("fenced", "primary")
    assert not (place.a / "probe").exists() or kind != "open"


def test_a_disk_that_hangs_counts_as_failed_and_is_asked_once(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.make_set(place.b)
    monkeypatch.setattr(peers, "ANSWER_S", 0.05)
    answers = threading.Event()
    asked: list[str] = []

    def disk(path: str) -> OsDisk:
        if path == str(place.a):
            asked.append(path)
            answers.wait(120)
        return OsDisk(path)

    with watching(place.b, disk, after_s=0.2, passes_s=0.1) as watch:
        done = watch.end()
        assert isinstance(done, Promotion)
        assert done.unreachable == [str(place.a)]
        answers.set()
    assert f"{place.a}: its disk does not answer" in watch.said
    assert len(asked) == 2  # the standby once, and the promotion once
    eventually(lambda: not [t for t in threading.enumerate() if t.name.startswith("filewheel-pro")])


def test_a_flicker_that_is_shorter_promotes_nobody(place: Place) -> None:
    place.make_set(place.b)
    with watching(place.b, passes_s=0) as watch:
        for _ in range(2):
            place.a.rename(place.base / "away")
            said = len(watch.said)
            eventually(lambda said=said: watch.said[said:] or watch.result)  # it has seen that
            watch.clock.advance(0.6 * AFTER_S)
            looks(watch, 2)
            (place.base / "away").rename(place.a)
            looks(watch, 2)
        assert [line.endswith(" works") for line in watch.said] == [False, True] * 2, watch.said
        looks(watch)
    assert watch.end() is None
    assert (role_of(place.a), role_of(place.b)) == ("primary", "backup")


def test_promoted_by_someone_else_it_ends_and_says_so(place: Place) -> None:
    place.make_set(place.b)
    with watching(place.b, passes_s=0) as watch:
        promote(place.b, wait_s=0)
        done = watch.end()
    assert isinstance(done, Promotion)
    assert done.notes == ["another process promoted it"]


def test_when_another_backup_was_promoted_that_one_is_watched(place: Place) -> None:
    place.make_set(place.b, place.c)
    untold = (place.b / "roster.json").read_bytes()
    promote(place.c, wait_s=0)
    (place.b / "roster.json").write_bytes(untold)  # the promotion did not reach it
    lose(place.a)
    with watching(place.b) as watch:
        was = os.stat(place.c).st_mtime_ns
        eventually(lambda: os.stat(place.c).st_mtime_ns != was)  # its probe
        looks(watch)
        assert not watch.result
        assert f"promoting {place.b}" not in watch.said  # nor does it try, which would be refused
    assert role_of(place.c) == "primary"


def test_a_new_primary_has_its_own_time_though_the_one_before_it_failed(place: Place) -> None:
    """It may not answer while its promotion ends: the time without the former primary does not count for it."""
    place.make_set(place.b, place.c)

    def disk(path: str) -> OsDisk:
        def fail(what: str, name: str) -> None:
            if path == str(place.c) and what == "pwrite" and name == "probe":
                raise OSError(28, os.strerror(28))

        return FaultyDisk(path, fail)

    with watching(place.b, disk, passes_s=0) as watch:
        lose(place.a)
        eventually(lambda: watch.said)
        watch.clock.advance(0.6 * AFTER_S)
        looks(watch, 2)
        promote(place.c, wait_s=0)
        eventually(lambda: any(os.strerror(28) in line for line in watch.said))
        watch.clock.advance(0.6 * AFTER_S)
        looks(watch, 4)
        assert not watch.result
    assert watch.end() is None
    assert not any(line.startswith("promoting") for line in watch.said)
    assert place.may_fire() == [place.c]


def test_a_primary_that_was_taken_out_of_the_set_or_removed_the_backup_is_well(place: Place) -> None:
    place.make_set(place.b)
    with watching(place.b) as watch:
        directory = open_directory(place.a, write=True)
        change_roster(directory, lambda r: r and replace(r, members=()))
        directory.disk.release()
        looks(watch)
        directory = open_directory(place.a, write=True)
        change_roster(directory, lambda _: None)
        directory.disk.release()
        looks(watch)
        assert not watch.result
    assert place.may_fire() == [place.a]


def test_of_two_standbys_one_promotes_and_the_other_watches_it(place: Place) -> None:
    place.make_set(place.b, place.c)
    place.enqueue(place.a, "x")
    place.level(place.a)
    with watching(place.b) as one, watching(place.c) as two:
        lose(place.a)
        eventually(lambda: one.result or two.result, 120)
        winner, other = (place.b, two) if one.result else (place.c, one)
        looks(other, 4)
    results = [watch.end() for watch in (one, two)]
    assert sorted(type(r).__name__ for r in results) == ["NoneType", "Promotion"], results
    assert place.may_fire() == [winner]
    assert place.fire(winner) == ["x"]


def test_a_standby_that_is_a_moment_too_late_watches_who_was_faster(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.make_set(place.b, place.c)
    place.enqueue(place.a, "x")
    place.level(place.a)
    tried: list[str] = []

    def too_late(path: Path, **more: Any) -> Promotion:
        tried.append(path)
        if len(tried) == 1:
            promote(place.c, wait_s=0, env=SYSTEM.using(clock=place.clock))
        return promote(path, **more)

    monkeypatch.setattr("filewheel.sets.standby.promote", too_late)
    with watching(place.b) as watch:
        lose(place.a)
        eventually(lambda: tried)
        looks(watch)
    assert watch.end() is None
    assert place.may_fire() == [place.c]
    assert tried == [str(place.b)]


def test_told_by_who_was_faster_a_standby_need_not_ask_it(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.make_set(place.b, place.c)
    place.level(place.a)
    tried: list[str] = []

    def too_late(path: Path, **more: Any) -> Promotion:
        tried.append(path)
        promote(place.c, wait_s=0, env=SYSTEM.using(clock=place.clock))
        return promote(path, **more)

    monkeypatch.setattr("filewheel.sets.standby.promote", too_late)
    monkeypatch.setattr(Standby, "_newer", lambda self, roster: None)  # too busy to answer
    with watching(place.b) as watch:
        lose(place.a)
        eventually(lambda: tried)
        looks(watch, 2)
        watch.standby.stop()
        assert not isinstance(watch.end(), Exception)
    assert place.may_fire() == [place.c]


def test_a_wheel_that_is_no_backup_has_no_standby(place: Place) -> None:
    place.make(place.a)
    with pytest.raises(BadArgument, match="is no backup"):
        Standby(place.a)
    place.make_set(place.b)
    promote(place.b, wait_s=0, env=SYSTEM.using(clock=place.clock))
    with pytest.raises(BadArgument, match="is no backup"):
        Standby(place.a)
    with pytest.raises(BadArgument, match="after_s"):
        Standby(place.b, after_s=0)


def test_a_backup_that_lacks_something_is_not_promoted_and_that_is_an_error(place: Place) -> None:
    place.make_set(place.b)
    directory = open_directory(place.b, write=True)
    change_roster(directory, lambda r: r and r.with_member(replace(r.members[0], state="stale")))
    directory.disk.release()
    lose(place.a)
    with watching(place.b) as watch:
        assert isinstance(watch.end(), BadArgument)
    assert role_of(place.b) == "backup"
