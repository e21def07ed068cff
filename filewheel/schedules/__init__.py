"""Recurring work: when it is due, and how an occurrence stores it.

A schedule is one pending message, its next occurrence. Nothing here knows a handler.
A module imports from the library and only from modules to its left:

    zone expression cron recurrence definition occurrences planting plain edit
"""
