"""Finds what a mutant falls to, or plays what it is known to fall to.

    python -m tests.crash.hunt NAME              search: small workloads, races, histories; says how many states it took
    python -m tests.crash.hunt NAME --sets       search histories and sagas of sets
    python -m tests.crash.hunt NAME --known      play its killer (mutants.py) alone

Runs in a process of its own, because a mutant can only be installed before the library is imported. Prints one JSON
line: {"killer", "states", "how"}, with "killer" null when it survived. The searches are always in the same order, so
the number of states can be had again.
"""

from __future__ import annotations

import argparse
import json
import logging
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from tests.crash import mutate
from tests.crash.mutants import by_name

STUCK_S = 30
Try = tuple[str, Callable[[], Any]]


class Stuck(BaseException):
    """A try did not end."""


def words() -> Iterator[Try]:
    """Yield the workloads of up to three operations, in a fixed order."""
    from tests.model import exhaustive

    order = list(range(exhaustive.COUNT))
    random.Random(7).shuffle(order)
    for number in order:
        yield f"word {number}", lambda number=number: exhaustive.play(number)  # type: ignore[misc]


def races() -> Iterator[Try]:
    """Yield the races, in turn."""
    from tests.model.races import NAMES, run_race

    for number in range(1, 100_000):
        for name in NAMES:
            yield f"race {name} {number}", lambda name=name, number=number: run_race(name, number)  # type: ignore[misc]


def keys() -> Iterator[Try]:
    """Yield races for unique keys, for ids that move, and for begins."""
    from tests.model.races import run_race

    for number in range(1, 100_000):
        for name in ("keys", "movers", "begins"):
            yield f"race {name} {number}", lambda name=name, number=number: run_race(name, number)  # type: ignore[misc]


def histories() -> Iterator[Try]:
    """Yield random histories."""
    from tests.model.history import run_history

    for number in range(1, 100_000):
        yield f"seed {number}", lambda number=number: run_history(number)  # type: ignore[misc]


def sets() -> Iterator[Try]:
    """Yield histories and sagas of sets, in turn."""
    from tests.crash.model_sets import saga_of, set_of

    for number in range(100_000):
        yield f"saga {number}", lambda number=number: saga_of(number)  # type: ignore[misc]
        yield f"set {number}", lambda number=number: set_of(number)  # type: ignore[misc]


def copies() -> Iterator[Try]:
    """Yield histories of a copy."""
    from tests.model.copies import history

    for number in range(100_000):
        yield f"copy {number}", lambda number=number: history(number)  # type: ignore[misc]


def known(killer: str) -> Iterator[Try]:
    """Yield the one try that is known to do it."""
    from tests.model import exhaustive
    from tests.model.directed import play
    from tests.model.history import run_history
    from tests.model.races import run_race

    kind, _, rest = killer.partition(" ")
    if kind == "word":
        yield killer, lambda: exhaustive.play(int(rest))
    elif kind == "seed":
        yield killer, lambda: run_history(int(rest))
    elif kind in ("set", "saga"):
        from tests.crash.model_sets import saga_of, set_of

        play_one = set_of if kind == "set" else saga_of
        yield killer, lambda: play_one(int(rest))
    elif kind == "copy":
        from tests.model.copies import history

        yield killer, lambda: history(int(rest))
    elif kind == "race":
        name, _, number = rest.partition(" ")
        yield killer, lambda: run_race(name, int(number))
    elif kind == "play":
        yield killer, lambda: play(rest)
    else:
        sys.exit(f"{killer} is a test: run it with pytest, -p tests.crash.mutate and FILEWHEEL_MUTANT")


def attempt(run: Callable[[], Any]) -> tuple[int, str | None]:
    """Make one try; return (states, what went wrong or None)."""
    signal.alarm(STUCK_S)
    try:
        result = run()
    except (Exception, Stuck) as exc:
        return 1, f"{type(exc).__name__}: {exc}"
    finally:
        signal.alarm(0)
    if result is None:
        return 0, None
    return result.states, result.violations[0] if result.violations else None


def search(tries: Iterator[Try], seconds: float) -> tuple[str | None, int, str]:
    """Try until something goes wrong; return (what did it, states so far, what went wrong)."""
    end = time.monotonic() + seconds
    states = 0
    for killer, run in tries:
        more, wrong = attempt(run)
        states += more
        if wrong is not None:
            return killer, states, wrong
        if time.monotonic() > end:
            break
    return None, states, ""


def _stuck(number: int, frame: object) -> None:
    raise Stuck("it does not end")


def main(args: list[str]) -> int:
    """Hunt one mutant; exits 1 when it survives."""
    parser = argparse.ArgumentParser()
    parser.add_argument("name")
    parser.add_argument("--known", action="store_true")
    parser.add_argument("--sets", action="store_true", help="search among sets of wheels alone")
    parser.add_argument("--seconds", type=float, default=20, help="for each kind of search")
    options = parser.parse_args(args)
    logging.disable(logging.CRITICAL)
    signal.signal(signal.SIGALRM, _stuck)
    mutate.install(options.name)
    mutant = by_name(options.name)
    if options.known:
        kinds = [known(mutant.killer)]
    elif options.sets or mutant.killer.startswith(("set ", "saga ")):
        kinds = [sets()]
    elif mutant.killer.startswith("copy "):
        kinds = [copies()]
    else:
        kinds = [words(), races(), histories(), keys()]
    killer, states, how = None, 0, ""
    for tries in kinds:
        killer, more, how = search(tries, options.seconds)
        states = more if killer else states + more
        if killer:
            break
    print(json.dumps({"name": options.name, "killer": killer, "states": states, "how": how[:160]}), flush=True)
    return killer is None


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
