"""What kind of file system a path is on: locks and flushes of a network file system cannot be trusted.

Owns the list of types that are refused. Invariant: what cannot be told is taken for local.
"""

from __future__ import annotations

import os

NETWORK_TYPES = frozenset(
    {
        *("nfs", "nfs4", "cifs", "smb3", "smbfs", "ncpfs", "9p", "afs", "ceph", "coda", "glusterfs", "lustre"),
        *("gfs2", "ocfs2", "beegfs", "gpfs", "orangefs", "pvfs2"),
        *("fuse.sshfs", "fuse.s3fs", "fuse.gcsfuse", "fuse.glusterfs", "fuse.rclone", "fuse.cephfs"),
    }
)


def file_system_type(path: str) -> str:
    """Return the type of the file system that holds `path` ("ext4", "nfs4"), or "" when it cannot be told."""
    try:
        device = os.stat(path).st_dev
        with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as lines:
            for line in lines:
                fields = line.split()
                if fields[2] == f"{os.major(device)}:{os.minor(device)}":
                    return fields[fields.index("-") + 1]
    except (OSError, ValueError, IndexError):
        pass  # "" counts as local: what cannot be told is not refused
    return ""
