"""Tools for a whole wheel: verify and repair, dump and diff, and the records of its files.

A program imports each from its module. Here are the directory that verify, repair and dissect take, and the type of a
path's file system.
"""

from filewheel.disk.directory import Directory, open_directory
from filewheel.disk.mounts import NETWORK_TYPES, file_system_type

__all__ = ["NETWORK_TYPES", "Directory", "file_system_type", "open_directory"]
