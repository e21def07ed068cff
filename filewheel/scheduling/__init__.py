"""The embedded scheduler: handlers called by name when their messages are due.

It is built on the wheel and the keeper; on disk it adds only headers (message.py).
A module imports from the library and only from modules to its left:

    cron | failure job options call handler schedule
    | lanes runner child process pool loop threads inline processes definitions
    | verdict claims events settlements dispatcher engine signals scheduler aio
"""
