"""When recurring work is due: cron expressions, time zones and occurrences."""

from filewheel.scheduling.cron.cron import Cron

__all__ = ["Cron"]
