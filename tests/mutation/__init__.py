"""What no test would notice: `python -m tests.mutation` changes the library line by line, and lists what survives."""
