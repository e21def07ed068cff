"""The input of commands: options, lines, batches, and a program's scheduler."""
