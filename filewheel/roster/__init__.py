"""The set of a wheel: its members, the fence that decides which wheel may write, and the retention for backups."""
