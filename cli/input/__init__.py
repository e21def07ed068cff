"""How the command reads what it is given: options, lines, batches, the wheel it works on."""
