"""The output of commands: text, tables, pictures, progress, logs."""
