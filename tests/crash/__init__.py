"""Campaigns that try to break a wheel: crash states, faults, kills, power cuts, flipped bits, clocks, mutants.

`python -m tests.crash` runs them with a time budget; tests/crash/campaign.py says what a campaign is.
"""
