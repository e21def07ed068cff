"""Verify, repair, dump and diff: tools that read a whole wheel."""
