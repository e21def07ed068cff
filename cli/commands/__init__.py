"""The verbs, one module each, every one with a click command named `command`."""
