"""All system calls on files, and the small files of a wheel: its directory, lock, hint, checkpoint and quarantine."""
