"""filewheel and what people would take instead, side by side: `make bench`, or `python -m tests.bench`.

place (where), store and stores/ (who), load, trace and workloads/ (what), child (one cell, in a process of its own),
harness (rounds, turn about), result (medians, ratios), table, plot and docs (what is shown). Imports go that way.
Invariant: a ratio is made of two figures of the same round, on the same file system, with the same durability,
payloads and due times.
"""
