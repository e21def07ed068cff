"""Several modelled disks, and sets of wheels on them: what the model does, what its oracle sees, some histories."""

from __future__ import annotations

import errno
import logging
import random
from collections.abc import Iterator
from dataclasses import replace

import pytest

from filewheel.disk import locks
from filewheel.disk.directory import open_directory
from filewheel.disk.disk import SYSTEM
from filewheel.message import US_PER_S
from filewheel.roster.roster import Mode, change_roster
from tests.model.life import fire_all
from tests.model.oracle import Told
from tests.model.saga import Saga, What, run_saga
from tests.model.set_history import run_set
from tests.model.several import NAMES, SetWorld, tiny_set
from tests.model.volumes import Condition, Process, Volumes

A, B = NAMES[:2]


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def put(process: Process, path: str, data: bytes, *, flush: bool) -> None:
    """Write a file on one disk; with `flush`, durably."""
    disk = process.open(path)
    fd = disk.open("file", "rw")
    disk.pwrite(fd, data, 0)
    if flush:
        disk.fdatasync(fd)
        disk.sync_dir("")


def content(volumes: Volumes, path: str) -> bytes | None:
    disk = Process(volumes).open(path)
    if disk.identity("file") is None:
        return None
    return disk.pread(disk.open("file", "r"), 100, 0)


def test_a_power_cut_meets_all_disks_at_once_and_each_loses_what_it_likes() -> None:
    volumes = Volumes(A, B)
    process = Process(volumes)
    put(process, A, b"a", flush=False)
    put(process, B, b"b", flush=False)
    rng = random.Random(1)
    states = {(content(cut, A), content(cut, B)) for cut in (volumes.crash(rng) for _ in range(100))}
    assert states >= {(None, None), (b"a", None), (None, b"b"), (b"a", b"b")}


def test_what_was_flushed_on_one_disk_is_there_whatever_the_other_lost() -> None:
    volumes = Volumes(A, B)
    process = Process(volumes)
    put(process, A, b"a", flush=True)
    put(process, B, b"b", flush=False)
    rng = random.Random(2)
    assert {content(volumes.crash(rng), A) for _ in range(30)} == {b"a"}


def test_operations_of_all_disks_are_logged_in_one_order() -> None:
    volumes = Volumes(A, B)
    seen: list[tuple[str, str, str]] = []
    volumes.on_op = lambda path, kind, name: seen.append((path, kind, name))
    process = Process(volumes)
    put(process, A, b"a", flush=False)
    put(process, B, b"b", flush=False)
    assert volumes.log == seen
    assert [(path, kind) for path, kind, _ in seen] == [(A, "open"), (A, "pwrite"), (B, "open"), (B, "pwrite")]


def test_a_process_that_is_killed_lets_go_of_its_locks_on_every_disk() -> None:
    volumes = Volumes(A, B)
    first, second = Process(volumes), Process(volumes)
    for path in (A, B):
        disk = first.open(path)
        assert disk.lock(disk.open("lock", "rw"), wait=False)
    others = [second.open(path) for path in (A, B)]
    fds = [disk.open("lock", "rw") for disk in others]
    assert not any(disk.lock(fd, wait=False) for disk, fd in zip(others, fds, strict=True))
    first.kill()
    assert all(disk.lock(fd, wait=False) for disk, fd in zip(others, fds, strict=True))


@pytest.mark.parametrize(
    ("condition", "write", "flush", "name"),
    [
        ("deleted", 0, 0, errno.ENOENT),
        ("unmounted", 0, 0, 0),
        ("read-only", errno.EROFS, errno.EROFS, errno.EROFS),
        ("full", errno.ENOSPC, 0, 0),
        ("fails each flush", 0, errno.EIO, 0),
        ("dead", errno.EIO, errno.EIO, errno.EIO),
    ],
)
def test_who_has_a_file_open_on_a_disk_sees_its_disaster(
    condition: Condition, write: int, flush: int, name: int
) -> None:
    volumes = Volumes(A, B)
    disk = Process(volumes).open(A)
    fd = disk.open("file", "rw")
    disk.pwrite(fd, b"x", 0)
    volumes[A].befall(condition)

    def code(call: object, *args: object) -> int:
        try:
            call(*args)  # type: ignore[operator]
        except OSError as exc:
            return exc.errno or -1
        return 0

    assert code(disk.pwrite, fd, b"xy", 0) == write
    assert code(disk.fdatasync, fd) == flush
    assert code(disk.open, "new", "rw") == name
    put(Process(volumes), B, b"b", flush=True)


@pytest.mark.parametrize(("condition", "comes_back"), [("deleted", False), ("unmounted", True)])
def test_who_opens_a_disk_that_is_gone_finds_nothing(condition: Condition, comes_back: bool) -> None:
    volumes = Volumes(A, B)
    put(Process(volumes), A, b"a", flush=True)
    volumes[A].befall(condition)
    with pytest.raises(FileNotFoundError):
        Process(volumes).open(A)
    volumes[A].befall("well")
    if comes_back:
        assert content(volumes, A) == b"a"
    else:
        with pytest.raises(FileNotFoundError):
            Process(volumes).open(A)


def test_an_enqueue_into_a_mirrored_set_survives_the_loss_of_either_disk() -> None:
    with tiny_set():
        world = SetWorld(1)

        def body(process: Process) -> None:
            world.enqueue(world.open_wheel(process), world.clock.wall_us + US_PER_S)

        world.act("producer", body)
        assert list(world.oracle.copies.values()) == [2]
        for lost in (A, B):
            world.check_loss(world.volumes.crash(random.Random(1), "none"), lost, "now")
        assert not world.oracle.violations


def test_the_oracle_names_a_message_that_was_said_to_have_two_copies_and_has_one() -> None:
    with tiny_set():
        world = SetWorld(1, mode="ship")

        def body(process: Process) -> None:
            world.oracle.copies[world.enqueue(world.open_wheel(process)).payload] = 2

        world.act("producer", body)
        world.check_loss(world.volumes.copy(random.Random(1)), B, "now")
        assert not world.oracle.violations
        world.check_loss(world.volumes.copy(random.Random(1)), A, "now")
        assert world.oracle.violations == [f"b'm1' had 2 copies and is lost: {A} lost, now"]


def test_the_oracle_names_what_only_one_of_the_wheels_holds() -> None:
    with tiny_set():
        world = SetWorld(1, mode="ship")

        def body(process: Process) -> None:
            world.enqueue(world.open_wheel(process))

        world.act("producer", body)
        world.check_equal("now")
        assert world.oracle.violations == [f"{B} lacks [b'm1'] and has [] too many: now"]


@pytest.mark.parametrize("is_busy", [True, False])
def test_a_retry_counts_when_it_is_written_not_while_a_producer_has_the_lock_of_its_id(is_busy: bool) -> None:
    with tiny_set():
        world = SetWorld(1, mode="ship")
        told: list[Told] = []
        fired: set[bytes] = set()

        def body(process: Process) -> None:
            told.append(world.enqueue(world.open_wheel(process), world.clock.wall_us))
            keeper = world.open_keeper(process)
            (message,) = keeper.claim()
            producer = Process(world.volumes)
            busy = [message.id] if is_busy else []
            with locks.holding_ids(open_directory(A, write=True, env=SYSTEM.using(disk=producer.open)), busy):
                world.nack(keeper, message.id, path=A)
            assert told[0].acked == (set() if is_busy else {message.id})
            process.kill()  # before a claim could write it

        world.act("keeper", body)
        world.act("drain", lambda process: fired.update(fire_all(world, world.open_keeper(process))))
        assert fired == {told[0].payload}
        assert not world.oracle.violations


@pytest.mark.parametrize("seed", [1, 3, 5])
def test_a_mirrored_set_survives_power_cuts_and_the_loss_of_any_disk_at_any_moment(seed: int) -> None:
    result = run_set(seed, mode="mirror")
    assert not result.violations
    assert result.states > 10


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_set_that_is_shipped_to_comes_in_step_when_it_is_quiet(seed: int) -> None:
    assert not run_set(seed, mode="ship").violations


SAGAS: list[tuple[int, Mode, int, What]] = [
    (0, "ship", 1, "cut"),
    (1, "ship", 1, "cut"),
    (1, "ship", 2, "quiet"),
    (0, "ship", 2, "planned"),
    (2, "ship", 2, "away"),
    (0, "mirror", 1, "cut"),
    (3, "mirror", 2, "cut"),
    (2, "mirror", 2, "strike"),
    (4000, "ship", 2, "cut"),
    (5002, "ship", 2, "away"),
]
"""Seeds that went wrong: what was given back in vain; what a lagging backup brought back; a move that was lost."""


@pytest.mark.parametrize(("seed", "mode", "backups", "what"), SAGAS)
def test_through_lives_disasters_and_promotions_nothing_is_lost_and_nothing_is_left(
    seed: int, mode: Mode, backups: int, what: What
) -> None:
    result = run_saga(seed, mode=mode, backups=backups, what=what)
    assert not result.violations
    assert result.fired > 10


def a_saga(seed: int) -> Saga:
    return Saga(seed, SetWorld(seed, mode="ship"), None)


def test_the_oracle_names_two_wheels_that_may_both_fire() -> None:
    with tiny_set():
        saga = a_saga(1)
        saga.check_alone()
        assert not saga.world.oracle.violations
        directory = open_directory(B, write=True, env=SYSTEM.using(disk=Process(saga.world.volumes).open))
        change_roster(directory, lambda old: old and replace(old, role="primary"))
        saga.check_alone()
        assert saga.world.oracle.violations == [f"{A} and {B} may both fire"]


def test_the_oracle_names_a_file_that_is_left_over() -> None:
    with tiny_set():
        saga = a_saga(1)
        saga.check_empty(A)
        assert not saga.world.oracle.violations
        Process(saga.world.volumes).open(A).mkdir("laps/30000000")
        saga.check_empty(A)
        assert saga.world.oracle.violations == [f"{A} has ['laps/30000000'] left over"]


@pytest.mark.parametrize("mode", ["ship", "mirror"])
def test_a_promotion_that_is_killed_at_any_operation_and_repeated_loses_nothing(mode: Mode) -> None:
    killed = 0
    for at in range(0, 200, 9):
        with tiny_set():
            world = SetWorld(2, mode=mode)
            saga = Saga(2, world, None)

            def body(process: Process, world: SetWorld = world) -> None:
                wheel = world.open_wheel(process)
                for _ in range(5):
                    world.enqueue(wheel)
                wheel.cancel(world.ids[0])
                world.oracle.cancelling(world.ids[0])
                world.oracle.is_cancelled(world.ids[0])

            world.act("producer", body)
            process = Process(world.volumes)
            world.volumes.on_op = saga.killer(process, at)
            world.run(("promote", process, lambda p=process, s=saga: s.promote_in(p, B)))  # type: ignore[misc]
            world.volumes.on_op = None
            is_done = process.alive
            process.kill()
            killed += not is_done
            saga.check_alone()
            world.act("promote", lambda p, s=saga: s.promote_in(p, B))  # type: ignore[misc]
            world.primary = B
            saga.rejoin_all()
            saga.settle()
            saga.check_whole()
            assert not world.oracle.violations, at
            if is_done:
                break
    assert killed > 5
