"""The verbs: each module has a click command named `command`."""
