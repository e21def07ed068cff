"""Timers compared and drawn: the contestants, the measurement, the table, the plot, and the picture of a wheel.

`filewheel timers` uses it, and the benchmark in tests/bench/timers.
"""
