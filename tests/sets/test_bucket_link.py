"""A bucket as a member of a set: added, shipped to, taken over, and what is said of it."""

from __future__ import annotations

import builtins
import os
import shutil
import socket
import stat
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("obstore", reason="the extra `objects` is not installed")

import filewheel.sets.bucket
import filewheel.sets.replicator
from filewheel import (
    BadArgument,
    DiskError,
    Fenced,
    FilewheelError,
    Keeper,
    Locked,
    Purged,
    ReadOnly,
    Replicator,
    Restored,
    Wheel,
    add_backup,
    promote,
    remove_backup,
    restore,
    set_status,
)
from filewheel.disk.disk import SYSTEM
from filewheel.roster.roster import roster_at
from filewheel.sets.bucket import ObjectStore
from filewheel.sets.bucket_link import EVERY_US, LIST_US, BucketLink
from filewheel.sets.bucket_target import Replaced
from filewheel.sets.link import LinkReport
from filewheel.sets.status import MemberStatus
from tests.sets.support_sets import in_thread
from tests.support import FakeClock, eventually


class Jobs:
    """A wheel whose backup is a bucket in a directory."""

    def __init__(self, base: Path) -> None:
        self.base, self.a = base, base / "a"
        self.url = f"file://{base}/bucket/jobs"
        Wheel.create(self.a).close()

    @property
    def objects(self) -> list[str]:
        return sorted(os.listdir(self.base / "bucket" / "jobs"))

    def enqueue(self, *payloads: bytes, to: Path | None = None) -> None:
        with Wheel(to or self.a) as wheel:
            for payload in payloads:
                wheel.enqueue(payload, delay=3600)

    def ship(self, wheel: Path | None = None) -> LinkReport:
        with Replicator(wheel or self.a) as replicator:
            return next(report for report in replicator.once() if report.path == self.url)

    def status(self, wheel: Path | None = None) -> MemberStatus:
        found = set_status(wheel or self.a)
        assert found is not None
        return next(one for one in found.members if one.member.path == self.url)

    def restore(self, name: str = "restored") -> Restored:
        return restore(self.url, self.base / name)

    def payloads(self, path: str | Path) -> list[bytes]:
        with Wheel(path) as wheel:
            return sorted(m.payload for m in wheel.list())


@pytest.fixture
def jobs(tmp_path: Path) -> Jobs:
    return Jobs(tmp_path)


def test_a_bucket_is_current_after_its_first_object_and_a_wheel_can_be_made_of_it(jobs: Jobs) -> None:
    member = add_backup(jobs.a, jobs.url)
    assert (member.state, member.mode) == ("joining", "ship")
    jobs.enqueue(b"a", b"b")
    assert jobs.ship().state == "following"
    seen = jobs.status()
    assert (seen.reachable, seen.member.state, seen.following, seen.lag_messages) == (True, "current", True, 0)
    jobs.enqueue(b"c")
    assert jobs.status().lag_messages == 1
    jobs.ship()
    assert jobs.payloads(jobs.restore().path) == [b"a", b"b", b"c"]
    assert roster_at(jobs.base / "restored") is None


def test_a_replicator_that_runs_ships_what_is_new(jobs: Jobs) -> None:
    add_backup(jobs.a, jobs.url)
    with Replicator(jobs.a) as replicator:
        thread = in_thread(replicator.run)
        eventually(lambda: jobs.status().member.state == "current")
        jobs.enqueue(b"a")
        eventually(lambda: len(jobs.objects) == 2)
        jobs.enqueue(b"b")  # the last second is shipped at the end
        replicator.stop()
        thread.join(60)
    eventually(lambda: len(jobs.objects) == 3)
    assert jobs.payloads(jobs.restore().path) == [b"a", b"b"]


def test_there_is_one_object_a_second_however_much_is_new(jobs: Jobs) -> None:
    add_backup(jobs.a, jobs.url)
    clock = FakeClock()
    clock.run_us = EVERY_US
    roster = roster_at(jobs.a)
    assert roster is not None
    link = BucketLink(str(jobs.a), roster.members[0], env=SYSTEM.using(clock=clock))
    for n in range(30):
        jobs.enqueue(b"%d" % n)
        link.tick()
        clock.advance(0.1)
    assert 3 <= len(jobs.objects) <= 4
    link.close()
    assert len(jobs.payloads(jobs.restore().path)) == 30


def test_two_replicators_of_one_directory_exclude_each_other(jobs: Jobs) -> None:
    member = add_backup(jobs.a, jobs.url)
    link = BucketLink(str(jobs.a), member)
    with pytest.raises(Locked, match="another replicator"):
        BucketLink(str(jobs.a), member)
    link.close()
    BucketLink(str(jobs.a), member).close()


def test_after_a_promotion_the_new_primary_ships_in_its_epoch(jobs: Jobs) -> None:
    add_backup(jobs.a, jobs.base / "b")
    add_backup(jobs.a, jobs.url)
    jobs.enqueue(b"a")
    jobs.ship()
    done = promote(jobs.base / "b")
    assert not done.unreachable
    jobs.enqueue(b"b", to=jobs.base / "b")
    assert jobs.ship(jobs.base / "b").state == "following"
    assert jobs.payloads(jobs.restore().path) == [b"a", b"b"]
    assert jobs.restore("again").epoch == 2


def test_a_primary_whose_bucket_was_taken_over_fires_nothing_more(jobs: Jobs) -> None:
    add_backup(jobs.a, jobs.url)
    jobs.enqueue(b"a")
    jobs.ship()
    restored = jobs.base / "restored"
    jobs.restore()
    with pytest.raises(Replaced, match="another wheel, .*/a, writes here"):
        add_backup(restored, jobs.url)
    add_backup(restored, jobs.url, take_over=True)
    assert jobs.ship(restored).state == "following"

    report = jobs.ship()
    assert report.state == "failed"
    assert "another wheel" in report.error
    with pytest.raises(Fenced, match="another wheel has taken over file://") as caught:
        Keeper(jobs.a, wait=False)
    assert "--take-over" in str(caught.value.hint)
    with pytest.raises(Fenced):
        jobs.enqueue(b"b")
    roster = roster_at(jobs.a)
    assert roster is not None
    assert (roster.role, roster.epoch) == ("fenced", 2)


def test_a_wheel_that_was_fenced_by_mistake_takes_its_bucket_over_again(jobs: Jobs) -> None:
    add_backup(jobs.a, jobs.url)
    jobs.ship()
    restored = jobs.base / "restored"
    jobs.restore()
    add_backup(restored, jobs.url, take_over=True)
    jobs.ship(restored)
    jobs.ship()
    add_backup(jobs.a, jobs.url, take_over=True)
    jobs.enqueue(b"a")
    assert jobs.ship().state == "following"
    assert jobs.status().member.state == "current"
    assert jobs.ship(restored).state == "failed"
    with pytest.raises(Fenced):
        jobs.enqueue(b"b", to=restored)
    assert jobs.payloads(jobs.restore("again").path) == [b"a"]


def test_a_clone_that_ships_is_refused_says_so_and_is_not_fenced(jobs: Jobs) -> None:
    add_backup(jobs.a, jobs.url)
    jobs.enqueue(b"a")
    jobs.ship()
    clone = jobs.base / "clone"
    shutil.copytree(jobs.a, clone, ignore=shutil.ignore_patterns("hint"))
    member = roster_at(clone).members[0]  # type: ignore[union-attr]
    with pytest.raises(Replaced, match="is a clone of it, or was moved"):
        BucketLink(str(clone), member)
    assert roster_at(clone).role == "primary"  # type: ignore[union-attr]
    assert len(jobs.objects) == 1


def test_a_directory_that_was_moved_goes_on_after_it_took_its_bucket_over(jobs: Jobs) -> None:
    add_backup(jobs.a, jobs.url)
    jobs.enqueue(b"a")
    jobs.ship()
    moved = jobs.base / "moved"
    shutil.copytree(jobs.a, moved, ignore=shutil.ignore_patterns("hint"))
    shutil.rmtree(jobs.a)
    add_backup(moved, jobs.url, take_over=True)
    jobs.enqueue(b"b", to=moved)
    assert jobs.ship(moved).state == "following"
    assert jobs.payloads(jobs.restore().path) == [b"a", b"b"]


def test_a_primary_that_was_set_back_is_refused_until_it_takes_its_bucket_over(jobs: Jobs) -> None:
    def deal() -> None:
        Keeper(jobs.a, wait=False, background=False).close()

    add_backup(jobs.a, jobs.url)
    jobs.enqueue(b"a")
    deal()
    jobs.ship()
    image = jobs.base / "image"
    shutil.copytree(jobs.a, image, ignore=shutil.ignore_patterns("hint"))
    jobs.enqueue(b"b")
    deal()
    jobs.ship()
    made = max(path.stat().st_mtime for path in (jobs.base / "bucket" / "jobs").iterdir())
    before = datetime.fromtimestamp(made + 0.001, UTC)
    for name in ("journal", "laps"):
        shutil.rmtree(jobs.a / name)
        shutil.copytree(image / name, jobs.a / name)
    for name in ("checkpoint", "checkpoint.old"):
        shutil.copy(image / name, jobs.a / name)
    jobs.enqueue(b"c")
    deal()
    report = jobs.ship()
    assert "one was set back" in report.error
    assert "--take-over" in report.error
    assert jobs.payloads(jobs.restore().path) == [b"a", b"b"]
    add_backup(jobs.a, jobs.url, take_over=True)
    assert jobs.ship().state == "following"
    assert jobs.payloads(jobs.restore("again").path) == [b"a", b"c"]
    # It did not have what the bucket had: that can still be restored.
    found = restore(jobs.url, jobs.base / "before", at=before)
    assert jobs.payloads(found.path) == [b"a", b"b"]


def test_a_primary_that_was_set_back_without_a_deal_is_refused(jobs: Jobs) -> None:
    add_backup(jobs.a, jobs.url)
    jobs.enqueue(b"a")
    jobs.ship()
    image = jobs.base / "image"
    shutil.copytree(jobs.a / "journal", image)
    jobs.enqueue(b"b")
    jobs.ship()
    for path in (jobs.a / "journal").iterdir():  # as a snapshot of the disk does: the files are the same ones
        if (image / path.name).exists():
            path.write_bytes((image / path.name).read_bytes())
        else:
            path.unlink()
    for _ in range(2):
        report = jobs.ship()
        assert "set back" in report.error
        assert "restore" in report.error
    assert jobs.payloads(jobs.restore().path) == [b"a", b"b"]


def test_a_bucket_that_cannot_be_written_is_a_state_with_its_age_and_is_over_when_it_can(jobs: Jobs) -> None:
    if not os.geteuid():
        pytest.skip("root may write anywhere")
    add_backup(jobs.a, jobs.url)
    jobs.ship()
    there = jobs.base / "bucket" / "jobs"
    there.chmod(stat.S_IRUSR | stat.S_IXUSR)
    jobs.enqueue(b"a")
    assert jobs.ship().state == "failed"
    there.chmod(stat.S_IRWXU)
    assert jobs.ship().state == "following"


def test_a_store_that_fails_is_a_state_with_its_age(jobs: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    add_backup(jobs.a, jobs.url)
    jobs.ship()

    def refused(*args: Any) -> Any:
        raise ReadOnly("the store refused access (403)", path=jobs.url, hint="look at the key and its rights")

    with monkeypatch.context() as patched:
        patched.setattr(ObjectStore, "listing", refused)
        assert jobs.ship().error.startswith(f"{jobs.url}: the store refused access (403)")
        seen = jobs.status()
        assert not seen.reachable
        assert seen.why.startswith("the store refused access (403)")
        assert " (for " in seen.why
        with Wheel(jobs.a) as wheel:
            assert wheel.enqueue(b"a", delay=3600).copies == 1  # nobody waits for a bucket
    assert jobs.ship().state == "following"
    assert jobs.status().reachable


def test_objects_that_a_rule_of_the_bucket_deletes_are_missed_within_a_day_and_made_anew(jobs: Jobs) -> None:
    member = add_backup(jobs.a, jobs.url)
    jobs.enqueue(b"a")
    clock = FakeClock()
    link = BucketLink(str(jobs.a), member, env=SYSTEM.using(clock=clock))
    link.tick()
    (jobs.base / "bucket" / "jobs" / jobs.objects[0]).unlink()
    clock.run_us = LIST_US + EVERY_US
    link.tick()
    link.close()
    assert jobs.payloads(jobs.restore().path) == [b"a"]


def test_after_a_purge_no_object_has_a_byte_of_what_has_ended(jobs: Jobs) -> None:
    add_backup(jobs.a, jobs.url)
    secret = b"forget me, please"
    with Wheel(jobs.a) as wheel:
        wheel.enqueue(secret, delay=0)
        jobs.enqueue(b"a")
        jobs.ship()
        with Keeper(jobs.a, wait=False, background=False) as keeper:
            keeper.ack(keeper.claim())
        assert any(secret in path.read_bytes() for path in (jobs.base / "bucket" / "jobs").iterdir())
        with Replicator(jobs.a) as replicator:
            thread = in_thread(replicator.run)
            eventually(lambda: jobs.status().member.state == "current")
            assert not wheel.purge(timeout_s=60).unreached
            replicator.stop()
            thread.join(60)
    assert not any(secret in path.read_bytes() for path in (jobs.base / "bucket" / "jobs").iterdir())
    assert jobs.payloads(jobs.restore().path) == [b"a"]


@pytest.mark.skipif("CLOCK_SHIFT_S" in os.environ, reason="on another day the files have the times of this one")
def test_a_purge_that_began_before_its_replicator_waits_for_a_new_base(jobs: Jobs) -> None:
    add_backup(jobs.a, jobs.url)
    jobs.enqueue(b"x")
    jobs.ship()
    with Wheel(jobs.a) as wheel:
        wheel.cancel_many([m.id for m in wheel.list()])
        found: list[Purged] = []
        purge = in_thread(lambda: found.append(wheel.purge(timeout_s=60)))
        eventually((jobs.a / "purged").exists)
        with Replicator(jobs.a) as replicator:
            thread = in_thread(replicator.run)
            purge.join(60)
            replicator.stop()
            thread.join(60)
    assert not found[0].unreached


def test_a_purge_names_a_bucket_with_keep_until_it_keeps_nothing(jobs: Jobs) -> None:
    add_backup(jobs.a, jobs.url, keep_s=86_400)
    with Wheel(jobs.a) as wheel, Replicator(jobs.a) as replicator:
        thread = in_thread(replicator.run)
        eventually(lambda: jobs.status().member.state == "current")
        wheel.cancel(wheel.enqueue(b"forget me", delay=60))
        (one,) = wheel.purge(timeout_s=1).unreached
        assert (one.place, "--keep" in one.what) == (jobs.url, True)
        assert f"backup add {jobs.url} --keep 0" in one.hint
        add_backup(jobs.a, jobs.url, keep_s=0)
        eventually(lambda: bool(wheel.purge(timeout_s=5)))  # one that begins before the new link is passed over
        replicator.stop()
        thread.join(60)


def test_a_store_that_never_answers_is_an_error_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen()
        for name, value in {
            "AWS_ENDPOINT": f"http://127.0.0.1:{deaf.getsockname()[1]}",
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_REGION": "us-east-1",
            "NO_PROXY": "127.0.0.1",
        }.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(filewheel.sets.bucket, "_CALL_S", 1)
        monkeypatch.setattr(filewheel.sets.bucket, "_RETRY_S", 1)
        store = ObjectStore("s3://bucket/jobs")
        for call in (lambda: store.create(1, b"x"), lambda: store.head(1), lambda: list(store.listing())):
            with pytest.raises(DiskError, match="the store failed"):
                call()


def test_a_bucket_that_fails_is_tried_again_after_longer_and_longer_times(
    jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_backup(jobs.a, jobs.url)
    tried: list[float] = []

    def fails(*args: Any) -> Any:
        tried.append(time.monotonic())
        raise DiskError("the store failed", path=jobs.url)

    monkeypatch.setattr(ObjectStore, "listing", fails)
    monkeypatch.setattr(filewheel.sets.replicator, "RETRY_S", 0.05)
    with Replicator(jobs.a) as replicator:
        thread = in_thread(replicator.run)
        eventually(lambda: len(tried) >= 6)
        replicator.stop()
        thread.join(60)
    assert tried[5] - tried[0] >= 0.05 * (1 + 2 + 4 + 8 + 16)


def test_a_bucket_that_is_removed_keeps_its_objects(jobs: Jobs) -> None:
    add_backup(jobs.a, jobs.url)
    jobs.enqueue(b"a")
    jobs.ship()
    remove_backup(jobs.a, jobs.url)
    assert set_status(jobs.a) is None
    assert jobs.payloads(jobs.restore().path) == [b"a"]


def test_how_long_it_keeps_is_changed_by_adding_it_again(jobs: Jobs) -> None:
    assert add_backup(jobs.a, jobs.url, keep_s=60).keep_us == 60_000_000
    assert add_backup(jobs.a, jobs.url).keep_us == 60_000_000
    assert add_backup(jobs.a, jobs.url, keep_s=0).keep_us == 0


def test_a_bucket_is_no_mirror_and_a_directory_keeps_nothing(jobs: Jobs) -> None:
    with pytest.raises(BadArgument, match="a mirror is a directory"):
        add_backup(jobs.a, jobs.url, mode="mirror")
    with pytest.raises(BadArgument, match="only a bucket"):
        add_backup(jobs.a, jobs.base / "b", keep_s=5)
    with pytest.raises(BadArgument, match="is no bucket"):
        restore("ftp://host/x", jobs.base / "r")


def test_without_the_library_the_error_says_how_to_install_it(jobs: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *args: Any, **more: Any) -> Any:
        if name.partition(".")[0] == "obstore":
            raise ImportError(name)
        return real(name, *args, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    for call in (lambda: add_backup(jobs.a, jobs.url), lambda: restore(jobs.url, jobs.base / "r")):
        with pytest.raises(BadArgument, match="obstore") as caught:
            call()
        assert caught.value.hint == "pip install 'filewheel[objects]'"


def test_a_time_of_a_restore_has_a_zone(jobs: Jobs) -> None:
    from datetime import datetime

    with pytest.raises(BadArgument, match="time zone"):
        restore(jobs.url, jobs.base / "r", at=datetime(2027, 1, 1))


def test_a_prefix_that_is_no_url_of_a_store_is_refused(jobs: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(jobs.base)
    for url in ("s3://", "gs://", "file://not/absolute/but/a/host"):
        with pytest.raises(FilewheelError):
            add_backup(jobs.a, url)
    assert roster_at(jobs.a) is None
    assert os.listdir(jobs.base) == ["a"]


def test_a_store_that_makes_a_name_twice_is_refused(jobs: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    import obstore

    real = obstore.put

    def careless(store: Any, path: str, data: Any, **how: Any) -> Any:
        return real(store, path, data, mode="overwrite")

    with monkeypatch.context() as patched:
        patched.setattr(obstore, "put", careless)
        with pytest.raises(BadArgument, match="makes a name twice"):
            add_backup(jobs.a, jobs.url)
    assert roster_at(jobs.a) is None
    add_backup(jobs.a, jobs.url)
    assert jobs.objects == []


def test_a_slash_at_the_end_of_a_url_is_no_other_bucket(jobs: Jobs) -> None:
    add_backup(jobs.a, jobs.url)
    add_backup(jobs.a, jobs.url + "/")
    assert len(roster_at(jobs.a).members) == 1  # type: ignore[union-attr]
