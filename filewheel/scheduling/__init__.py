"""The embedded scheduler: handlers called by name when their messages are due.

It stands on the wheel and the keeper and adds nothing to what is on disk but headers (headers.py).
A module imports from the library and only from modules to its left:

    zone expression cron recurrence
    | failure events retry call options job handler outgoing schedule
    | lane overdue task child process pool loop threads inline remote definitions aiohandler
    | verdict watch dispatcher engine place scheduler aio
"""
