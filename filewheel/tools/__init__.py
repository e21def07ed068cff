"""Tools for a whole wheel: verify and repair, dump and diff, and the records of its files.

A program imports each tool from its module. This module exports the directory that verify, repair and dissect take, the
type of a path's file system, whether the inner loops are those in C, and a child's end with its parent.
"""

from filewheel.disk.directory import NETWORK_TYPES, Directory, file_system_type, open_directory
from filewheel.disk.forks import die_with
from filewheel.native.compiled import COMPILED

__all__ = ["COMPILED", "NETWORK_TYPES", "Directory", "die_with", "file_system_type", "open_directory"]
