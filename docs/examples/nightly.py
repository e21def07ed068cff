"""A nightly report in three steps. A crash loses no step.

    export FILEWHEEL=$HOME/nightly.wheel
    python nightly.py          # runs for ever; reports every night at two, Berlin time
    python nightly.py --now    # reports now, runs everything else that is due, and ends

The first step counts the lines of `logs/*.log`, the second writes them as a text, and the third saves it in `reports/`.
"""

import os
import sys
from datetime import datetime
from pathlib import Path
from zoneinfo import ZoneInfo

from filewheel import Locked, Retry, Scheduler, current_job

BERLIN = ZoneInfo("Europe/Berlin")
scheduler = Scheduler(os.environ["FILEWHEEL"])  # an absolute path, for any working directory


# missed="once": after three nights without power, one report is made, and not three. When the clocks skip from two to
# three, the report runs at three. When two o'clock comes twice, it runs once.
@scheduler.every("0 2 * * *", tz="Europe/Berlin", missed="once")
@scheduler.on("collect", retry=Retry(limit=5, delay_s=60))
def collect():
    # The scheduled day, not the day of this run. The fire id keeps it in a retry.
    day = datetime.fromtimestamp(current_job().fire_id.due_us / 1e6, BERLIN).date().isoformat()
    counts = {path.name: len(path.read_text().splitlines()) for path in sorted(Path("logs").glob("*.log"))}
    # The next step is written in the same frame as the end of this one. After a crash before that frame, this step runs
    # again and has no successor yet. After a crash behind it, this step is done and its successor exists.
    with current_job().transaction():
        summarise.enqueue(day, counts)


@scheduler.on("summarise")
def summarise(day, counts):
    lines = [f"Report of {day}", "", *(f"{count:8} {name}" for name, count in counts.items())]
    with current_job().transaction():
        publish.enqueue(day, "\n".join(lines) + "\n")


@scheduler.on("publish", retry=Retry(limit=20, delay_s=60, delay_max_s=1800))
def publish(day, text):
    # At least once: after a crash between its return and the flush of the acknowledgement, a step runs again. So it
    # writes the same file again, and replaces it in one operation.
    target = Path("reports") / f"{day}.txt"
    target.parent.mkdir(exist_ok=True)
    draft = target.with_suffix(".new")
    draft.write_text(text)
    draft.replace(target)
    print(f"published {target}", flush=True)


def main():
    if "--now" not in sys.argv[1:]:
        scheduler.run()
        return
    try:
        collect.enqueue()
        print(f"{scheduler.drain()} steps were done")
    except Locked:  # another process fires this wheel, and makes the calls
        print("the running process makes the report")
    finally:
        scheduler.stop()


if __name__ == "__main__":
    main()
