"""The protocol of the delay service as a model: one partition, three nodes, and all that happens between two steps.

`cluster.py` is Kafka (fencing, atomic commits and committed reads are assumed), `wheel.py` the directory of a
partition, `node.py` what a node does, with the library's own Marker, and `world.py` the random schedule and the judge.
All choices of a schedule come from its seed: `python -m tests.kafka.model 7` plays it again.
"""
