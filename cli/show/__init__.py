"""How the command shows things: text, tables, pictures, progress, logs."""
