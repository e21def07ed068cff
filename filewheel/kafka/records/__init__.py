"""A record of the delay topic as a plain value: what it asks for, and what goes out for it. Nothing here has a state.

A module imports only from those to its left:

    record options | headers | envelope | fate | waiting_record
"""
