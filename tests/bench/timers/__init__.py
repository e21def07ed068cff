"""`python -m tests.bench.timers`: the timers in memory beside their peers, and the goals that they are built to."""
