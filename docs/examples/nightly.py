"""A nightly report: three steps, none of which a crash loses or does twice over.

    export FILEWHEEL=$HOME/nightly.wheel
    python nightly.py          # keeps running; every night at two, by the clocks of Berlin
    python nightly.py --now    # once, now, and everything else that is due; then it ends

The first step counts the lines of `logs/*.log`, the second makes a text of that, the third puts it into `reports/`.
"""

import os
import sys
from datetime import datetime
from pathlib import Path
from zoneinfo import ZoneInfo

from filewheel import Locked, Retry, Scheduler, current_job

BERLIN = ZoneInfo("Europe/Berlin")
scheduler = Scheduler(os.environ["FILEWHEEL"])  # an absolute path: it may be started anywhere


# missed="once": was the machine off for three nights, then one report is made when it is back, and not three. In the
# night on which the clocks skip from two to three it comes at three; on which two comes twice it comes once.
@scheduler.every("0 2 * * *", tz="Europe/Berlin", missed="once")
@scheduler.on("collect", retry=Retry(limit=5, delay_s=60))
def collect():
    # The day that was meant, not the day on which this happens to run. The fire id has it also in a retry.
    day = datetime.fromtimestamp(current_job().fire_id.due_us / 1e6, BERLIN).date().isoformat()
    counts = {path.name: len(path.read_text().splitlines()) for path in sorted(Path("logs").glob("*.log"))}
    # The next step is written in the same frame as the end of this one. Killed before that frame, this step is run
    # again and there is no next one yet; killed after it, the next one is there and this one is not.
    with current_job().transaction():
        summarise.enqueue(day, counts)


@scheduler.on("summarise")
def summarise(day, counts):
    lines = [f"Report of {day}", "", *(f"{count:8} {name}" for name, count in counts.items())]
    with current_job().transaction():
        publish.enqueue(day, "\n".join(lines) + "\n")


@scheduler.on("publish", retry=Retry(limit=20, delay_s=60, delay_max_s=1800))
def publish(day, text):
    # At least once: killed between its return and the flush of the acknowledgement, a step runs again. So it writes
    # the same to the same place, whole or not at all.
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
    except Locked:  # another process fires this wheel, and has been told
        print("the one that runs already does it")
    finally:
        scheduler.stop()


if __name__ == "__main__":
    main()
