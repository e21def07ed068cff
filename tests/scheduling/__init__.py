"""The embedded scheduler, module by module."""
