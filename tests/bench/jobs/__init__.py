"""The scheduler beside its peers: jobs called a second, how late they are called, and memory while many wait.

`python -m tests.bench.jobs` runs it; docs/benchmarks-scheduler.md shows one run. What a cell is, where it runs and how
rounds take turns is the store comparison's (tests/bench/harness.py, place.py, result.py).
"""
