"""A message is looked at: snapshots, a look by id, and counts."""
