"""Tests of filewheel.timers: the schemes against a sorted list, and the timers with a fake clock."""
