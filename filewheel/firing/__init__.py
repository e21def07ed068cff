"""A message fires: the ready queue, claims, settlements, and the housekeeping of a keeper."""
