"""Delays by levels: a topic for each of a few delays, without a wheel and without a disk.

All records of one topic wait equally long, so the one at the head of a partition is due first. A module imports only
from those to its left:

    naming | queue | loop | metrics | service
"""
