"""The inner loops: C sources beside the Python that does the same, and the choice between the two."""
