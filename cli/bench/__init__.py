"""What `filewheel bench` measures, and what it makes of it.

It uses the public library only, as a user's program would, in rounds that take turns: each figure is the median of
its rounds. What the figures mean is decided in `verdict`, which measures nothing.
"""
