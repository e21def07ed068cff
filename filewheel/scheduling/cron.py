"""When recurring work is due: cron expressions, time zones and occurrences."""

from filewheel.schedules.cron import Cron
from filewheel.schedules.recurrence import Every, Missed, Once, Recurrence, read_recurrence
from filewheel.schedules.zone import Zone

__all__ = ["Cron", "Every", "Missed", "Once", "Recurrence", "Zone", "read_recurrence"]
