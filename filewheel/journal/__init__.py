"""A message is enqueued: checked, appended to a segment, flushed, copied to mirrors, and read again as it grows."""
