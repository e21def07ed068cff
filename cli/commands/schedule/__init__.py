"""`schedule` and its verbs, one in each module."""

from .group import command

__all__ = ["command"]
