"""Descriptors of files for `kafka run`: the limit of this process is raised, and compared with the partitions.

Invariant: the limit is never lowered. It ends with the process, so nobody else sees the change.
"""

from __future__ import annotations

import contextlib
import logging

from ...failure import Failure

log = logging.getLogger("filewheel.kafka")

FOR_EACH = 9
"""Descriptors of an open partition (measured)."""
BESIDE = 100
"""Those of the clients, and of moments while files are dealt."""
_MOST = 1 << 20
_HINT = "LimitNOFILE=65536 in the unit of systemd, or `ulimit -n`"


def raise_limit() -> int:
    """Raise this process's limit as far as it may be; return it."""
    try:
        import resource
    except ImportError:  # no such limit on this system
        return _MOST
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _MOST if hard == resource.RLIM_INFINITY else hard
    if soft == resource.RLIM_INFINITY or soft >= most:
        return _MOST if soft == resource.RLIM_INFINITY else soft
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def check_limit(limit: int, partitions: int, *, opens_all: bool) -> None:
    """Refuse a limit with which a node that opens all partitions cannot; warn one that opens only those it owns.

    Raises Failure.
    """
    needed = FOR_EACH * partitions + BESIDE
    if limit >= needed:
        return
    said = f"{partitions} partitions need about {needed} descriptors, and this process may have {limit}"
    if opens_all:
        raise Failure("usage", said, hint=_HINT)
    log.warning("%s: enough only while other nodes own some of them. Try: %s", said, _HINT)
