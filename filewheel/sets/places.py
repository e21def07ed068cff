"""The places where a backup may be: a directory of this machine, or a URL.

Each scheme of URLs has a line in `link_for`, and one in `check_place`. All else of a set treats the members alike: the
roster has the URL as the path, the primary's note (roster/far.py) says how such a backup is, and it is no mirror.
"""

from __future__ import annotations

from filewheel.checks import scheme_of
from filewheel.disk.disk import SYSTEM
from filewheel.env import Env
from filewheel.errors import BadArgument
from filewheel.roster.roster import Member, Mode
from filewheel.sets.bucket import SCHEMES as BUCKETS
from filewheel.sets.bucket_link import BucketLink
from filewheel.sets.copy import Progress
from filewheel.sets.link import Link

SCHEMES = ("ssh", *BUCKETS)


def check_place(where: str, mode: Mode) -> None:
    """Raise BadArgument unless a backup in this mode may be at this path or URL."""
    scheme = scheme_of(where)
    if scheme and scheme not in SCHEMES:
        known = "".join(f", or {one}://..." for one in SCHEMES)
        raise BadArgument(f"no backup can be at {where}", hint=f"name a directory{known}")
    if scheme and mode == "mirror":
        raise BadArgument(f"a mirror is a directory of this machine, not {where}", hint="`--ship`")


def link_for(primary: str, member: Member, *, progress: Progress | None = None, env: Env = SYSTEM) -> Link | BucketLink:
    """Return a link that keeps this backup in step. Raises as `Link` and `BucketLink`."""
    if scheme_of(member.path) in BUCKETS:
        return BucketLink(primary, member, progress=progress, env=env)
    return Link(primary, member, progress=progress, env=env)
