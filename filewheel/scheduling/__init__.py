"""The embedded scheduler: handlers called by name when their messages are due.

It stands on the wheel and the keeper and adds nothing to what is on disk but headers (headers.py).
A module imports from the library and only from modules to its left:

    zone expression cron recurrence
    | pool_result pool_frame pool_worker pool_process pool_member pool_collector pool
    | events retry call options failure job handler outgoing schedule
    | lane overdue task loop threads inline remote definitions aiohandler
    | verdict watch dispatcher engine place scheduler aio
"""
