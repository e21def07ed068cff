"""A handle that is open sees each key that others take, deal or enter again, whatever it has read itself."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from filewheel import Keeper, KeyHeld, MessageId, Wheel
from filewheel.disk.directory import open_directory
from filewheel.format import layout
from filewheel.keys.index import LISTED_EACH_MAX
from filewheel.keys.upkeep import rebuild_keys
from filewheel.laps.deal import Deal
from filewheel.message import KEY


def keys_of(path: Path) -> tuple[str, str, str]:
    """Return two keys of one file of the index, and one of another file."""
    hash_of = open_directory(path, write=False).settings.key_hash
    names = [str(n) for n in range(3000)]
    bucket = hash_of(names[0])[0]
    two = next(n for n in names[1:] if hash_of(n)[0] == bucket)
    return names[0], two, next(n for n in names if hash_of(n)[0] != bucket)


def _enqueue(other: Wheel, key: str, _: MessageId) -> None:
    other.enqueue(b"x", delay=60, key=key)


def _enqueue_many(other: Wheel, key: str, _: MessageId) -> None:
    other.enqueue_many([b"x"], delay=60, keys=[key])


def _add(other: Wheel, key: str, _: MessageId) -> None:
    with Wheel.create(f"{other.path}.too") as third:
        message = third.get(third.enqueue(b"x", delay=60))
    assert message is not None
    message.headers = {KEY: key}
    other.add([message])


def _revive(other: Wheel, key: str, dead: MessageId) -> None:
    other.reschedule(dead, delay=60)


@pytest.mark.parametrize("take", [_enqueue, _enqueue_many, _add, _revive])
def test_a_key_that_another_handle_took_since_is_held(
    wheel: Wheel, wheel_dir: Path, take: Callable[[Wheel, str, MessageId], None]
) -> None:
    one, two, _ = keys_of(wheel_dir)
    with Wheel(wheel_dir) as other:
        other.enqueue(b"x", delay=0, key=two)
        with Keeper(wheel_dir, background=False) as keeper:
            dead = keeper.bury(keeper.claim()[0])
            assert dead is not None
        wheel.enqueue(b"x", delay=60, key=one)
        take(other, two, dead)
    with pytest.raises(KeyHeld):
        wheel.enqueue(b"two", delay=60, key=two)


def test_a_key_is_held_whatever_was_read_and_dealt_since_it_was_taken(wheel: Wheel, wheel_dir: Path) -> None:
    one, two, other = keys_of(wheel_dir)
    wheel.enqueue(b"x", delay=60, key=one)
    wheel.enqueue(b"x", delay=60, key=two)  # it reads their file, which lists neither
    with Keeper(wheel_dir, background=False) as keeper:
        Deal(keeper._store, spread=False).run()
    wheel.enqueue(b"x", delay=60, key=other)  # it looks, and reads the new checkpoint
    for key in (one, two, other):
        with pytest.raises(KeyHeld):
            wheel.enqueue(b"two", delay=60, key=key)


def test_a_key_that_is_entered_again_is_held_in_a_handle_that_was_open(wheel: Wheel, wheel_dir: Path) -> None:
    one, two, _ = keys_of(wheel_dir)
    with Wheel(wheel_dir) as first:
        first.enqueue(b"x", delay=60, key=one)
    Keeper(wheel_dir).close()
    os.unlink(wheel_dir / layout.key_file(open_directory(wheel_dir, write=False).settings.key_hash(one)[0]))
    wheel.enqueue(b"x", delay=60, key=two)  # it finds that there is no such file
    with Keeper(wheel_dir, background=False) as keeper:
        rebuild_keys(keeper.directory, keeper._store.quarantine)
        for key in (one, two):
            with pytest.raises(KeyHeld):
                wheel.enqueue(b"two", delay=60, key=key)


def test_a_key_that_two_handles_replace_in_turn_has_one_holder_and_a_short_list(wheel: Wheel, wheel_dir: Path) -> None:
    with Wheel(wheel_dir) as other:
        for n in range(5 * LISTED_EACH_MAX):
            who = wheel if n % 3 else other
            last = who.enqueue(b"%d" % n, delay=60, key="typing", on_conflict="replace", sync="never")
            for each in (wheel, other):
                held = each.get(key="typing")
                assert held is not None
                assert held.id == last
        assert max(len(w._keys.ids_of("typing")) for w in (wheel, other)) < 4 * LISTED_EACH_MAX
    with Keeper(wheel_dir, background=False) as keeper:
        Deal(keeper._store, spread=False).run()
        assert wheel._keys.ids_of("typing") == [last]
        with pytest.raises(KeyHeld):
            wheel.enqueue(b"x", key="typing")
        assert wheel.cancel(key="typing")
        again = wheel.enqueue(b"x", delay=60, key="typing")
    with Wheel(wheel_dir) as fresh:
        assert [m.id for m in fresh.list()] == [again]
