"""The pictures of the page in docs/images, of a wheel at work, in a real Chromium.

    python -m tests.live.pictures

Look at them before they are kept.
"""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from filewheel import Retry, Scheduler, Wheel
from tests.live.chromium import Chromium
from tests.live.web_support import TOKEN, page
from tests.support import REPO, eventually

IMAGES = REPO / "docs" / "images"
WHEEL = Path(tempfile.gettempdir()) / "filewheel-demo" / "jobs.wheel"
WAIT_S = 12
"""Two publications of the scheduler's metrics are five seconds apart."""


def scheduler_of(path: Path) -> Scheduler:
    """Return a scheduler with work of several kinds."""
    scheduler = Scheduler(path, threads=4)

    @scheduler.on("mail")
    def mail(to: str) -> None:
        time.sleep(0.02)

    @scheduler.on("webhook", retry=Retry(limit=2, delay_s=0.05))
    def webhook(customer: int) -> None:
        raise ConnectionError(f"api.example answered 503 to customer {customer}")

    @scheduler.on("export")
    def export(name: str) -> None:
        time.sleep(60)

    scheduler.schedule("nightly report", "0 3 * * *", "report", tz="Europe/Berlin")
    scheduler.schedule("heartbeat", 30, "mail", ["ops"])
    return scheduler


def fill(scheduler: Scheduler) -> None:
    """Enqueue what is due in the next minutes, hours and weeks."""
    rng = random.Random(4)
    names = ("ann", "bob", "cem", "dee")
    for _ in range(500):
        scheduler.enqueue("mail", [rng.choice(names)], delay=rng.gammavariate(2, 60))
    for n in range(5):
        scheduler.enqueue("webhook", [n], delay=1 + n / 5)
    scheduler.enqueue("export", ["accounts.csv"], delay=0.5)
    with Wheel(scheduler.wheel.path) as wheel:
        ahead = [rng.gammavariate(2, 9000) for _ in range(900)] + [rng.random() * 86_400 * 60 for _ in range(400)]
        wheel.enqueue_many([b"your trial ends"] * len(ahead), delay=ahead, topic="trial")


def main() -> None:
    """Make them all."""
    shutil.rmtree(WHEEL.parent, ignore_errors=True)
    WHEEL.parent.mkdir()
    Wheel.create(WHEEL).close()
    IMAGES.mkdir(exist_ok=True)
    scheduler = scheduler_of(WHEEL)
    fill(scheduler)
    with scheduler, page(WHEEL, token=TOKEN) as client, Chromium() as browser:
        base = f"http://127.0.0.1:{client.port}/"
        eventually(lambda: client.get("/api/live")["stats"]["dead"] == 5)
        time.sleep(WAIT_S)
        browser.open(base, width=1100, height=860)
        time.sleep(2)
        browser.picture(IMAGES / "live-now.png", width=1100, height=1010, scale=0.75)
        scheduler.wheel.pause(topic="trial*", why="the text is being changed")
        browser.open(base, width=1100, height=600, is_dark=True)
        time.sleep(2)
        browser.picture(IMAGES / "live-dark.png", width=1100, height=600, scale=0.6)
        browser.open(f"{base}#token={TOKEN}", width=1100, height=420)
        browser.run("location.hash = '#/dead'")
        browser.wait("document.querySelector('[data-verb=revive]')")
        browser.click("[data-verb=revive]")
        browser.wait("document.querySelector('#ask').open")
        browser.picture(IMAGES / "live-dead.png", width=1100, height=420, scale=0.75)
        browser.open(f"{base}#/messages", width=320, height=950)
        browser.wait("document.querySelectorAll('#view-other tbody tr').length > 5")
        browser.picture(IMAGES / "live-narrow.png", width=320, height=950)
        command = [sys.executable, "-m", "cli", "-C", str(WHEEL), "top", "--once", "--no-json"]
        sys.stdout.write(subprocess.run(command, cwd=REPO, capture_output=True, text=True, check=True).stdout)


if __name__ == "__main__":
    main()
