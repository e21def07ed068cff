"""All metrics of a wheel as one scrape: on disk, of its set, and what its scheduler published.

Invariant: it counts nothing that the view has counted lately.
"""

from __future__ import annotations

from filewheel.live.backups import set_gauges
from filewheel.live.wheel_view import WheelView
from filewheel.lookup.overdue import Overdue
from filewheel.message import US_PER_S
from filewheel.metrics.gauges import disk_gauges
from filewheel.metrics.metrics import PREFIX
from filewheel.metrics.prometheus import gauge, render, with_labels
from filewheel.metrics.published import together


def scrape(view: WheelView) -> str:
    """Return the text that Prometheus scrapes, each sample with the wheel's path. Raises FilewheelError.

    Cost: what is old of the view; the counts may be as old as the view says (`filewheel_counted_age_seconds`).
    """
    stats = view.stats()
    now_us = view.now_us()
    on_disk = disk_gauges(stats.value, overdue(view), now_us)
    age_s = stats.age_us(now_us) / US_PER_S
    on_disk.append(gauge(f"{PREFIX}counted_age_seconds", "How old the counts of this page are.", age_s))
    found_set = view.backups().value
    if found_set is not None:
        on_disk += set_gauges(found_set)
    families = together(on_disk, view.published(), now_us, stats.value.keeper_pid)
    return render(with_labels(families, {"wheel": view.path}))


def overdue(view: WheelView) -> Overdue:
    """Return how many messages are due: exactly up to 10,000, above that as the time ahead was last counted.

    While topics or schedules are paused it counts them apart, and reads each due message.
    """
    stats, now_us = view.stats().value, view.now_us()
    if stats.paused:
        return view.wheel().overdue(now_us / US_PER_S)
    turning = view.turning().value
    many = turning.has_more_overdue
    count = max(0, view.ahead().value.overdue - turning.begun) if many else turning.overdue
    first_us = turning.next_us if turning.next_us is not None and turning.next_us <= now_us else None
    return Overdue(now_us, count, first_us, running=turning.begun)
