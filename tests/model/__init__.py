"""The library on a modelled machine: every interleaving of disk calls, and a power cut after any of them.

`machine` is the disk, `sched` exchanges the actors, `world` has actors and oracle, `history` puts them together.
"""
