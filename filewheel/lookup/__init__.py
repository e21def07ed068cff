"""A message is looked up: snapshots, lookups by id, and counts."""
