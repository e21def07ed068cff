"""When recurring work is due: cron expressions, time zones and occurrences."""

from filewheel.scheduling.cron.cron import Cron
from filewheel.scheduling.cron.recurrence import Every, Recurrence, read_recurrence
from filewheel.scheduling.cron.zone import Zone

__all__ = ["Cron", "Every", "Recurrence", "Zone", "read_recurrence"]
