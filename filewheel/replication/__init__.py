"""Backup wheels: a replicator keeps them in step with their primary, and a promotion puts one in its place.

Module order (a module imports only from those to its left; tests/test_layers.py guards it):

    follows sources losses drops whole chunk laps bygone replay bundle finished follower matcher suspects moves
    | backupkeeper graft giveback behind bookmark membership report heal mender absorb carry
    | link others troubles replicator sets promote rejoin standby
"""
