"""The wheel of one partition, where its records wait, and the marker that says which of them are done.

A module imports only from those to its left:

    losses marker packing position waiting data_lock | log_keeper | keyed | partition
"""
