"""How far a message travels through the code, step by step, beside the budget of each step.

    python -m tests.journey                        # the table
    python -m tests.journey --most claim           # the functions of a step, those entered most often first
    python -m tests.journey --tree "cancel by id"  # its calls in order, indented by depth
    python -m tests.journey --lower                # write budgets down to the present figures

Each mechanism that is added makes the way longer, and nothing makes it shorter by itself: the budgets do. A budget is
lowered in any change, and raised by hand, with an ADR that says what the reader got for it.
Invariant: `--lower` raises no figure.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections import Counter
from dataclasses import asdict, replace
from pathlib import Path

from tests.journey.trace import Row, row_of

BUDGETS = Path(__file__).with_name("budgets.txt")
SLACK = 0.02
"""A figure may be below its budget by this part, so that two changes at once need not wait for each other."""
_STEP = 44


def read(text: str) -> dict[str, Row]:
    """Return step → budget from a table."""
    rows = [line for line in text.splitlines()[1:] if line.strip()]
    return {row[:_STEP].strip(): Row(*map(int, row[_STEP:].replace("-", "0").split())) for row in rows}


def table(budgets: dict[str, Row]) -> str:
    """Return the text of a table."""
    head = f"{'step':{_STEP}}" + "".join(f"{name:>11}" for name in asdict(Row(0, 0, 0, 0)))
    rows = [f"{step:{_STEP}}" + "".join(f"{n or '-':>11}" for n in asdict(b).values()) for step, b in budgets.items()]
    return "\n".join([head, *rows]) + "\n"


def measured() -> tuple[dict[str, Row], dict[str, list[tuple[int, str]]]]:
    """Return the figures of each step, and its calls as (depth, function). For a process with the loops in Python."""
    from tests.journey.walks import LIFE, played  # imports the library, with the loops that were chosen above

    figures, calls = {}, {}
    for step, entered in played().items():
        row = row_of(entered)
        # A reader reads all of a message's way; one step shares its files with the others.
        figures[step] = replace(row, lines=-(-row.lines // 100) * 100 if step == LIFE else 0)
        calls[step] = [(c.depth, f"{c.function.file}:{c.function.line} {c.function.name}") for c in entered]
    return figures, calls


def judged(figures: dict[str, Row], budgets: dict[str, Row]) -> list[str]:
    """Return what is wrong: a figure above its budget, far below it, or without one."""
    wrong = [f"{step!r} has a budget and is not walked" for step in budgets.keys() - figures.keys()]
    for step, figure in figures.items():
        for name, now in asdict(figure).items():
            allowed = getattr(budgets.get(step), name, 0)
            # A comment more in one of the files makes no way longer.
            if now > allowed * (1.05 if name == "lines" else 1):
                wrong.append(f"{step!r}: {now} {name}, the budget is {allowed}: take something away, or write an ADR")
            elif now < allowed * (1 - SLACK):
                wrong.append(f"{step!r}: {now} {name}, the budget is {allowed}: `python -m tests.journey --lower`")
    return wrong


def lowered(figures: dict[str, Row], budgets: dict[str, Row]) -> dict[str, Row]:
    """Return the budgets, each figure lowered to the present one where that is less."""
    return {
        step: Row(*(min(a, b) for a, b in zip(asdict(f).values(), asdict(budgets.get(step, f)).values(), strict=True)))
        for step, f in figures.items()
    }


def main() -> int:
    """Print or lower. The exit code is 1 when a figure does not fit its budget."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--most", metavar="STEP", help="print the functions of a step by how often they are entered")
    parser.add_argument("--tree", metavar="STEP", help="print the calls of a step in order")
    parser.add_argument("--lower", action="store_true", help="lower budgets to the present figures")
    parser.add_argument("--figures", action="store_true", help="print the figures alone, without their budgets")
    args = parser.parse_args()
    if os.environ.get("FILEWHEEL_PURE") != "1" or os.environ.get("PYTHONHASHSEED") != "0":
        os.environ.update(FILEWHEEL_PURE="1", PYTHONHASHSEED="0")  # read at the start of a process
        os.execv(sys.executable, [sys.executable, "-m", "tests.journey", *sys.argv[1:]])
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `| head`
    figures, calls = measured()
    step = args.most or args.tree
    if step is not None and step not in calls:
        parser.error(f"the steps are {', '.join(calls)}")
    if args.most:
        for name, times in Counter(name for _, name in calls[args.most]).most_common():
            print(f"{times:6} {name}")
        return 0
    if args.tree:
        for depth, name in calls[args.tree]:
            print("  " * depth + name)
        return 0
    if args.figures:
        print(table(figures), end="")
        return 0
    budgets = read(BUDGETS.read_text(encoding="utf-8")) if BUDGETS.exists() else {}
    if args.lower:
        budgets = lowered(figures, budgets)
        BUDGETS.write_text(table(budgets), encoding="utf-8")
    print(table(figures), end="")
    wrong = judged(figures, budgets)
    print("\n".join(wrong) or "each figure fits its budget", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
