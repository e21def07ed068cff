"""Backup wheels: other directories that hold the same messages, and take over when the primary is lost.

It stands on the wheel, the keeper and what both are made of (docs/adr/0016-backup-wheels.md).
A module imports from the library and only from modules to its left:

    follows sources
"""
