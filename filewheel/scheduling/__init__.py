"""The embedded scheduler: handlers called by name when their messages are due.

It is built on the wheel and the keeper; on disk it adds only headers (message.py).
A module imports from the library and only from modules to its left:

    cron | job outcome options call handler settlements
    | lanes runner child process pool loop threads inline processes definitions
    | life claims events dispatcher engine scheduler aio
"""
