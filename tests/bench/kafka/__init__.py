"""Benchmarks of the delay service: its own guarantees and other ways to delay a record, on one real broker.

`python -m tests.bench.kafka` runs them. A module imports only from those to its left:

    rig | side | sides | measures | page | __main__
"""
