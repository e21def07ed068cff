"""The set of a wheel: its members and the fence that decides which wheel may write."""
