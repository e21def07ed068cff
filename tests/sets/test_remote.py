"""A backup on another machine: one round trip a tick, a line that is cut anywhere, a far disk that fails, a promotion.

The far machine is this process (support_far.py); test_copy_server.py has real ones.
"""

from __future__ import annotations

import errno
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from filewheel import (
    BadArgument,
    Fenced,
    FilewheelError,
    Keeper,
    Locked,
    NoWheel,
    Standby,
    Wheel,
    add_backup,
    remove_backup,
)
from filewheel.disk.directory import open_directory
from filewheel.disk.disk import SYSTEM, OsDisk
from filewheel.format import layout
from filewheel.roster.far import FOLLOWED_US
from filewheel.roster.roster import change_roster, read_roster
from filewheel.sets.promote import promote
from filewheel.sets.remote import Channel, raised_there, ssh_command
from filewheel.sets.replicator import Replicator
from filewheel.sets.status import set_status
from filewheel.tools.verify import verify
from tests.sets.support import Pair, assert_prefix, fire
from tests.sets.support_far import Line, LocalPeer, url_of

far = pytest.mark.parametrize("pair", ["far"], indirect=True)


@far
def test_a_tick_is_one_round_trip_and_an_idle_one_none(pair: Pair, line: Line) -> None:
    link = pair.settle(2)
    with pair.wheel() as one, pair.wheel() as other, pair.keeper() as keeper:
        one.enqueue(b"x", delay=5)
        other.enqueue(b"x", delay=5)
        pair.settle(1)
        for delay in (1, 50, 4000):
            one.enqueue(b"x", delay=delay)
            other.enqueue_many([b"y"] * 100, delay=delay)
            link._looked_us = link._clock.steady_us()  # no look at rosters and pauses, once a second
            before = line.answers
            assert link.tick()
            assert line.answers == before + 1, "segments of two writers"
            assert not link.tick()
            assert line.answers == before + 1
        pair.clock.advance(3)
        fire(pair, keeper)
        link._looked_us = link._clock.steady_us()
        before = line.answers
        assert link.tick(), "a new checkpoint"
        assert line.answers == before + 1
    pair.settle()
    pair.assert_equal()


@far
@pytest.mark.parametrize("seed", range(8))
def test_a_line_that_is_cut_at_any_message_leaves_a_prefix_and_the_end_is_equal(
    pair: Pair, line: Line, seed: int
) -> None:
    rng = random.Random(seed)
    cuts = 0
    with pair.keeper() as keeper, pair.wheel() as wheel:
        for _ in range(12):
            ids = wheel.enqueue_many([b"x" * rng.choice([1, 3000])] * 5, delay=[0, 0, 0.05, 100, 4000])
            wheel.reschedule(ids[4], delay=rng.choice([0, 10, 4000]))
            wheel.cancel(ids[3])
            line.cut_at = line.messages + rng.choice([1, 2, 3, 5, 8, 13, 21, 34, 55])
            try:
                for _ in range(6):
                    fire(pair, keeper, lambda k, i: k.nack(i, delay=0.1) if rng.random() < 0.2 else k.ack([i]))
                    pair.tick(1, rng.choice([0.02, 0.3]))
            except NoWheel:
                cuts += 1
                if pair.link is not None:
                    pair.kill()
                line.settle()
                assert_prefix(pair.primary, pair.backup, "ship")
                assert not verify(open_directory(pair.backup, write=False)).damage
        line.cut_at = None
        pair.settle()
        pair.assert_equal()
        assert pair.pending(pair.backup), "the test shows nothing"
    assert cuts > 3


class FullDisk(OsDisk):
    """A far disk that is full for a while."""

    is_full = False

    def _check(self) -> None:
        if FullDisk.is_full:
            raise OSError(errno.ENOSPC, "No space left on device")

    def pwrite(self, fd: int, data: bytes, offset: int) -> None:  # type: ignore[override]
        self._check()
        super().pwrite(fd, data, offset)


@far
def test_a_far_disk_that_is_full_is_named_with_its_age_and_goes_on_when_it_has_room(pair: Pair, line: Line) -> None:
    line.env = SYSTEM.using(disk=FullDisk)
    pair.settle(2)
    pair.close()
    env = SYSTEM.using(clock=pair.clock)
    FullDisk.is_full = True
    try:
        with pair.wheel() as wheel:
            wheel.enqueue(b"x", delay=60)
        with Replicator(pair.primary, env=env) as replicator:
            (report,) = replicator.once()
            assert "no space left" in report.error
            pair.clock.advance(7)
            replicator.once()
        status = set_status(pair.primary, env=env)
        assert status is not None
        assert not status.members[0].reachable
        assert "no space left" in status.members[0].why
        assert "(for 7 s)" in status.members[0].why
    finally:
        FullDisk.is_full = False
    with Replicator(pair.primary, env=env) as replicator:
        assert not replicator.once()[0].error
    status = set_status(pair.primary, env=env)
    assert status is not None
    assert (status.members[0].reachable, status.members[0].lag_messages) == (True, 0)
    pair.assert_equal()


@far
def test_the_lag_of_a_backup_that_is_away_is_known(pair: Pair, line: Line) -> None:
    pair.settle(2)
    pair.close()
    env = SYSTEM.using(clock=pair.clock)
    line.is_cut = True
    with pair.wheel() as wheel:
        wheel.enqueue_many([b"x"] * 7, delay=60)
    pair.clock.advance(9)
    with Replicator(pair.primary, env=env) as replicator:
        assert "ssh cannot connect" in replicator.once()[0].error
    status = set_status(pair.primary, env=env)
    assert status is not None
    (one,) = status.members
    assert (one.reachable, one.lag_messages) == (False, 7)
    assert one.lag_s is not None
    assert one.lag_s >= 9
    line.is_cut = False
    pair.settle(1)
    pair.assert_equal()


@far
def test_a_replicator_that_ended_in_order_follows_no_more(pair: Pair) -> None:
    pair.settle(2)
    env = SYSTEM.using(clock=pair.clock)
    status = set_status(pair.primary, env=env)
    assert status is not None
    assert status.members[0].following
    pair.close()
    status = set_status(pair.primary, env=env)
    assert status is not None
    assert not status.members[0].following
    pair.settle(2)
    pair.kill()
    pair.clock.advance(FOLLOWED_US / 1e6)
    status = set_status(pair.primary, env=env)
    assert status is not None
    assert not status.members[0].following


@far
def test_a_promotion_over_there_fences_the_primary_with_the_next_tick(pair: Pair) -> None:
    with pair.wheel() as wheel, pair.keeper() as keeper:
        pair.settle(2)
        wheel.enqueue(b"x", delay=1)
        pair.settle(1)
        pair.kill()  # the line is down, and the machines do not see each other
        hidden = pair.primary.with_name("not here")
        pair.primary.rename(hidden)
        promotion = promote(pair.backup, wait_s=0)
        assert promotion.unreachable == [str(pair.primary)]
        hidden.rename(pair.primary)
        wheel.enqueue(b"only here", delay=1)  # nobody can know
        with pytest.raises(Fenced, match="was promoted in place of this wheel"):
            pair.tick()  # the line is back
        pair.link = None
        roster = pair.roster()
        assert (roster.role, roster.primary, roster.epoch) == ("fenced", url_of(pair.backup), 2)
        pair.clock.advance(2)
        with pytest.raises(Fenced):
            wheel.enqueue(b"y")
        with pytest.raises(Fenced):
            keeper.claim(1)
    with Keeper(pair.backup, wait=False, background=False, clock=pair.clock) as keeper:
        assert [m.payload for m in keeper.claim(10)] == [b"x"]
    pair.damaged += [pair.primary]  # two histories from here on: neither is a prefix of the other
    pair.damaged += [pair.backup]


@far
def test_a_former_primary_that_is_added_over_there_gives_what_only_it_has_and_is_copied_anew(
    pair: Pair, line: Line
) -> None:
    env = SYSTEM.using(clock=pair.clock)
    with pair.wheel() as wheel:
        wheel.enqueue_many([b"both"] * 3, delay=60)
        pair.settle(2)
        pair.kill()
        wheel.enqueue(b"only here", delay=60)
    hidden = pair.primary.rename(pair.primary.with_name("not here"))
    promote(pair.backup, wait_s=0, env=env)
    hidden.rename(pair.primary)
    with Wheel(pair.backup, clock=pair.clock) as wheel:
        wheel.enqueue(b"only there", delay=60)
    with Keeper(pair.primary, wait=False, background=False, clock=pair.clock) as keeper:
        assert keeper is not None
        with pytest.raises(Locked):
            add_backup(pair.backup, url_of(pair.primary), env=env)
    member = add_backup(pair.backup, url_of(pair.primary), env=env)
    assert (member.state, member.path) == ("joining", url_of(pair.primary))
    with Replicator(pair.backup, env=env) as replicator:
        (report,) = replicator.once()
        assert (report.state, report.error) == ("following", "")
    pair.assert_equal()
    with Wheel(pair.primary) as wheel:
        assert sorted(m.payload for m in wheel.list()) == [*[b"both"] * 3, b"only here", b"only there"]


@far
def test_when_a_wheel_of_the_first_machine_is_promoted_the_far_copy_follows_that_one(pair: Pair, line: Line) -> None:
    env, other = SYSTEM.using(clock=pair.clock), pair.primary.with_name("other")
    add_backup(pair.primary, other, env=env)
    with Replicator(pair.primary, env=env) as replicator:
        with pair.wheel() as wheel:
            wheel.enqueue_many([b"x"] * 5, delay=60)
        assert [report.error for report in replicator.once()] == ["", ""]
        with pair.wheel() as wheel:
            wheel.enqueue(b"shipped to the far copy only", delay=60)
        pair.settle(1)
        pair.close()
        lost = pair.primary.rename(pair.primary.with_name("lost"))
        promotion = promote(other, wait_s=0, env=env)
        assert url_of(pair.backup) in promotion.unreachable
        first = replicator.once()
        assert [(report.path, report.error) for report in first] == [(url_of(pair.backup), "")]
        assert first[0].returned == 1
        assert not replicator.once()[0].error
    with Wheel(other) as one, Wheel(pair.backup) as copy:
        assert sorted(m.payload for m in one.list()) == [b"shipped to the far copy only", *[b"x"] * 5]
        assert sorted(m.id for m in one.list()) == sorted(m.id for m in copy.list())
    assert_prefix(other, pair.backup, "ship")
    lost.rename(pair.primary)
    pair.damaged += [pair.primary, pair.backup]


@far
def test_a_backup_on_another_machine_does_not_promote_itself(pair: Pair) -> None:
    pair.settle(2)
    with pytest.raises(BadArgument, match="cannot tell a lost machine from a lost line"):
        Standby(pair.backup)


@far
def test_a_promotion_over_there_gets_the_lock_from_a_replicator_that_is_connected(pair: Pair) -> None:
    pair.settle(2)
    theirs = open_directory(pair.backup, write=True)
    change_roster(theirs, lambda old: None if old is None else replace(old, role="promoting", epoch=2, office=1))
    with pytest.raises(Fenced):
        pair.tick(60)
    pair.kill()
    assert pair.roster().role == "primary", "it is an announcement: the promotion may never end"
    assert promote(pair.backup, wait_s=0).epoch == 3
    assert pair.roster().epoch == 3, "it could be reached by its path"


@far
def test_a_far_backup_that_is_removed_is_a_whole_wheel_of_its_own(pair: Pair) -> None:
    with pair.wheel() as wheel:
        wheel.enqueue(b"x", delay=60, key="once")
        pair.settle(2)
    pair.close()
    remove_backup(pair.primary, url_of(pair.backup))
    assert list((pair.primary / layout.FAR).iterdir()) == []
    with Wheel(pair.backup, clock=pair.clock) as alone:
        assert alone.get(key="once") is not None
        alone.enqueue(b"y")
    pair.damaged.append(pair.backup)


def test_a_far_directory_with_messages_is_not_taken(tmp_path: Path, line: Line) -> None:
    Wheel.create(tmp_path / "one").close()
    with Wheel.create(tmp_path / "other") as other:
        other.enqueue(b"x", delay=60)
    with pytest.raises(FilewheelError, match="messages are pending"):
        add_backup(tmp_path / "one", url_of(tmp_path / "other"))


# -- what the far end does not do -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "act",
    [
        lambda c: c.call("open", "../secret", "r"),
        lambda c: c.call("open", "/etc/passwd", "r"),
        lambda c: c.call("open", "journal/../../secret", "r"),
        lambda c: c.call("rename", "wheel.json", "../x"),
        lambda c: c.call("listdir", ".."),
        lambda c: c.call("pread", 0, 10, 0),
        lambda c: c.call("digests", [("../secret", 0, 10)]),
        lambda c: c.call("_call_make", {}, False),
        lambda c: c.call("release"),
    ],
)
def test_no_call_leads_out_of_the_wheel(tmp_path: Path, line: Line, act: Callable[[Channel], object]) -> None:
    Wheel.create(tmp_path / "wheel").close()
    (tmp_path / "secret").write_bytes(b"secret")
    channel = Channel(LocalPeer(line, str(tmp_path / "wheel")), url_of(tmp_path / "wheel"))
    channel.call("wheel")
    with pytest.raises(FilewheelError):
        act(channel)
    assert channel.call("listdir", "journal") == []
    assert (tmp_path / "secret").read_bytes() == b"secret"


def test_a_write_that_fails_unanswered_is_told_by_the_next_call_and_all_after(tmp_path: Path, line: Line) -> None:
    Wheel.create(tmp_path / "wheel").close()
    line.env = SYSTEM.using(disk=FullDisk)
    channel = Channel(LocalPeer(line, str(tmp_path / "wheel")), url_of(tmp_path / "wheel"))
    fd, _ = channel.call("open", "small.tmp", "w")
    FullDisk.is_full = True
    try:
        channel.cast("pwrite", fd, b"x", 0)
    finally:
        with pytest.raises(OSError, match="No space left"):
            channel.call("fdatasync", fd)
        FullDisk.is_full = False
    with pytest.raises(OSError, match="No space left"):
        channel.call("size", fd)


def test_an_error_of_the_far_end_is_the_same_here_and_names_the_machine(tmp_path: Path, line: Line) -> None:
    peer = LocalPeer(line, str(tmp_path / "nothing"))
    channel = Channel(peer, url_of(tmp_path / "nothing"))
    with pytest.raises(NoWheel, match="no such directory") as caught:
        channel.call("wheel")
    assert caught.value.path == f"ssh://far.example{tmp_path / 'nothing'}"
    with pytest.raises(NoWheel, match="does not know the call"):
        channel.call("sing")
    peer.close()
    with pytest.raises(NoWheel, match="connection was lost"):
        channel.call("wheel")
    assert channel.is_broken


def test_an_error_of_a_name_that_is_none_here_is_an_error_of_the_tree() -> None:
    for name in ("contextlib", "Errors of Tomorrow", "anew", "TypeVar", "Error"):
        found = raised_there([name, {"what": "it failed", "path": "/p"}], "ssh://far.example/p")
        assert type(found) is FilewheelError
        assert str(found) == "ssh://far.example/p: it failed"


# -- the URL ---------------------------------------------------------------------------------------------------


def words(url: str) -> list[str]:
    """The command without the options that are always the same."""
    return [word for word in ssh_command(url) if word != "-o" and "=" not in word]


def test_a_url_becomes_a_command_of_ssh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FILEWHEEL_SSH", raising=False)
    assert words("ssh://far.example/srv/jobs") == ["ssh", "far.example", "filewheel copy-server /srv/jobs"]
    assert words("ssh://ann@far.example:2222/a%20b") == [
        *("ssh", "-p", "2222", "ann@far.example"),
        "filewheel copy-server '/a b'",
    ]
    assert words("ssh://[fe80::1]/~/jobs")[1:] == ["fe80::1", "filewheel copy-server jobs"]
    assert ssh_command("ssh://h/j?command=/opt/fw/bin/filewheel")[-1] == "/opt/fw/bin/filewheel copy-server /j"
    monkeypatch.setenv("FILEWHEEL_SSH", "my-ssh -F 'a file'")
    assert ssh_command("ssh://h/j")[:3] == ["my-ssh", "-F", "a file"]


@pytest.mark.parametrize(
    "url",
    [
        *("ssh://host", "ssh://host/", "ssh:///path", "ssh://-oProxyCommand=x/path", "ssh://a b/path", "ssh://h:x/p"),
        *("ssh://h/p?port=3", "ssh://-l@h/p", "ssh://h/p#x", "ssh://h/~/", "ssh://h;ls/p", "ssh://h/p?command"),
    ],
)
def test_a_wrong_url_is_refused_and_names_the_form(tmp_path: Path, url: str) -> None:
    Wheel.create(tmp_path / "one").close()
    with pytest.raises(BadArgument, match="not a place of a backup"):
        add_backup(tmp_path / "one", url)
    assert read_roster(OsDisk(str(tmp_path / "one")), "") is None


def test_a_mirror_is_on_this_machine(tmp_path: Path) -> None:
    Wheel.create(tmp_path / "one").close()
    with pytest.raises(BadArgument, match="a mirror is a directory of this machine"):
        add_backup(tmp_path / "one", "ssh://host/path", mode="mirror")
