"""The model, for as long as it may run here: random histories with power cuts anywhere.

The budget is FILEWHEEL_MODEL_S seconds (15 by default); the seeds start at FILEWHEEL_MODEL_SEED. A failure names its
seed, and `python -m tests.model SEED` runs that one history again.
"""

from __future__ import annotations

import logging
import os
import time

import pytest

from tests.model.history import run_history


def test_no_power_cut_and_no_kill_loses_invents_or_repeats_anything() -> None:
    budget_s = float(os.environ.get("FILEWHEEL_MODEL_S", "15"))
    seed = int(os.environ.get("FILEWHEEL_MODEL_SEED", str(int(time.time()))))
    end = time.monotonic() + budget_s
    states = 0
    logging.disable(logging.CRITICAL)
    try:
        while time.monotonic() < end:
            result = run_history(seed)
            assert not result.violations, f"python -m tests.model {seed}\n" + "\n".join(result.violations[:5])
            states += result.states
            seed += 1
    finally:
        logging.disable(logging.NOTSET)
    assert states > 0


@pytest.mark.parametrize("seed", [1, 2, 43, 46, 978, 2123, 100501])
def test_a_history_that_once_went_wrong_goes_right(seed: int) -> None:
    logging.disable(logging.CRITICAL)
    try:
        assert not run_history(seed).violations
    finally:
        logging.disable(logging.NOTSET)
