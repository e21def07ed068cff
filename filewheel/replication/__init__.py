"""Backup wheels: a replicator keeps them in step with their primary, and a promotion puts one in its place.

Module order (a module imports only from those to its left; tests/test_layers.py guards it):

    follows sources losses drops whole chunk replay bundle follower matcher suspects
    | backupkeeper behind bookmark membership report absorb
    | link replicator sets promote rejoin standby
"""
