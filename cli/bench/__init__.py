"""Benchmarks of `filewheel bench`: each produces figures that anyone can have again with the same command.

They use the public library only, measure in processes of their own, and never assert: a figure is a measurement on one
machine, and is told with its shape, its limit or its yardstick.
"""
