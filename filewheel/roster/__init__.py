"""The set that a wheel belongs to: its members, the fence that decides which one may write, the retention."""
