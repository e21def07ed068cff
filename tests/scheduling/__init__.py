"""The embedded scheduler."""
