"""The inner loops: in C, in Python with the same results, and the choice between the two."""
