"""`kafka` and its verbs, one in each module; `cluster` has the options that all of them share."""

from .group import command

__all__ = ["command"]
