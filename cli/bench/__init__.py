"""The measurements of `filewheel bench` and their interpretation.

It uses only the public library, as a user's program would. The kinds of work take turns in rounds; each figure is the
median of its rounds. `verdict` interprets the figures and measures nothing.
"""
