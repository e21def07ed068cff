"""The tests on other days than today: `python -m tests.days` moves the clock of the processes that run them."""
