def replay(cell):
    raise NotImplementedError
