"""The model beside its campaigns (tests/crash/model.py): seeds that once went wrong, and a search that shrinks."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from tests.model import keyed
from tests.model.directed import play
from tests.model.exhaustive import NAMES, OPERATIONS, NothingToDo, Scene, begin
from tests.model.history import run_history
from tests.model.races import run_race
from tests.model.stage import Stage
from tests.model.sweep import Sweep
from tests.support import seeds, some

EXAMPLES = seeds(5, all_of=50).stop


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("seed", some([1795241302, 1795241437, 1, 8, 32, 98, 100], one_of=4))
def test_a_history_that_once_went_wrong_goes_right(seed: int) -> None:
    assert not run_history(seed).violations


@pytest.mark.parametrize("seed", [7, 26, 31, 58])
def test_a_race_for_a_key_that_once_went_wrong_goes_right(seed: int) -> None:
    assert not run_race("keys", seed).violations


@pytest.mark.parametrize("seed", [48, 56, 86])
def test_a_key_that_was_taken_while_another_thread_flushed_the_journal_is_held_after_a_power_cut(seed: int) -> None:
    assert not run_race("key_flushes", seed).violations
    assert not play("key-flushed-beside").violations


@pytest.mark.parametrize("seed", range(1, seeds(4, all_of=8).stop + 1))
def test_of_several_that_move_one_message_at_once_one_does(seed: int) -> None:
    assert not run_race("movers", seed).violations


@pytest.mark.parametrize("seed", range(1, seeds(4, all_of=8).stop + 1))
def test_nothing_begins_under_an_id_whose_cancel_or_move_had_returned(seed: int) -> None:
    assert not run_race("begins", seed).violations


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.sampled_from(keyed.BEGINNINGS), st.lists(st.sampled_from(list(keyed.OPERATIONS)), min_size=3, max_size=8))
def test_whatever_is_done_with_a_key_a_power_cut_anywhere_leaves_at_most_one_that_lives(
    beginning: str, word: list[str]
) -> None:
    def script(stage: Stage) -> None:
        keyed.begin(stage, beginning)
        for name in word:
            keyed.OPERATIONS[name](stage)

    assert not Sweep(limit=12).play(script, name=", ".join(word)).violations


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.sampled_from(["empty", "lived"]), st.lists(st.sampled_from(NAMES), min_size=4, max_size=9))
def test_longer_workloads_survive_a_power_cut_anywhere_and_what_fails_is_made_short(
    beginning: str, word: list[str]
) -> None:
    sweep = Sweep(limit=12)

    def script(stage: Stage) -> None:
        scene = Scene(stage)
        begin(scene, beginning)
        done = 0
        for name in word:
            try:
                OPERATIONS[name](scene)
            except NothingToDo:
                continue
            done += 1
        assume(done)

    assert not sweep.play(script, name=", ".join(word)).violations
