"""The boot of the machine: whether a file that was never flushed may have survived since it was written.

The page cache keeps such a file until the machine stops. So a file with the id of the present boot is as it was
written, and one with another id may be older than its last write.
Invariant: no two boots have one id, unless it is empty; an empty id proves nothing.
"""

from __future__ import annotations


def boot_id() -> str:
    """Return the id of this boot of the machine; "" where the system has none. Cost: reads one small file."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""  # so the caller trusts no file that was not flushed


def machine_id() -> str:
    """Return the id of this installation of the system; an empty string where there is none, as in most containers."""
    try:
        with open("/etc/machine-id", encoding="ascii", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return ""
