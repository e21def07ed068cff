"""Tools for a whole wheel: verify and repair, dump and diff, and the records of its files.

A program imports each tool from its module. This module exports the directory that verify, repair and dissect take, and
the type of a path's file system.
"""

from filewheel.disk.directory import NETWORK_TYPES, Directory, file_system_type, open_directory

__all__ = ["NETWORK_TYPES", "Directory", "file_system_type", "open_directory"]
