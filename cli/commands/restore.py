"""`restore`: make a wheel of a copy in a bucket, on a machine that has nothing else."""

from __future__ import annotations

import os
from shlex import quote

import click

from filewheel import restore
from filewheel.tools.dump import iso

from ..input.params import TIME, When
from ..show.output import Output
from ..show.text import count, safe, size
from ..signals import interruptible
from ..times import to_datetime
from ..verb import verb


@verb(
    "restore",
    """
    $ filewheel backup add s3://bucket/jobs
    $ filewheel restore s3://bucket/jobs /srv/jobs.wheel
    """,
    own=("force",),
)
@click.option("--at", "when", type=TIME, metavar="TIME", help="As it was at this time.  [default: the last]")
@click.option("--force", is_flag=True, help="Also to a network file system.")
@click.argument("url", metavar="URL")
@click.argument("path", metavar="DIR", type=click.Path(file_okay=False))
def command(out: Output, when: When | None, force: bool, url: str, path: str) -> None:
    """Make a wheel of a copy in a bucket.

    DIR must be missing or empty. Each object is checked. The wheel is as after a crash of the primary at the last
    second that it shipped: what was acknowledged later fires again. It is in no set; nothing in the bucket changes. -C
    is not used.

    --at goes back to an earlier time, while the bucket keeps it (`backup add --keep`).
    """
    at = None if when is None else to_datetime(when.due_us)
    with interruptible(), out.progress("restoring") as progress:

        def tell(done: int, total: int) -> None:
            progress.total = total
            progress.at(done)

        done = restore(url, path, at=at, progress=tell, force=force)
    if out.wants_json:
        out.record(
            {
                "path": done.path, "url": done.url, "at": iso(done.at_us), "epoch": done.epoch, "writer": done.writer,
                "objects": done.objects, "bytes": done.size_bytes,
            }
        )  # fmt: skip
    else:
        what = f"{count(done.objects, 'object')}, {size(done.size_bytes)}"
        out.write(f"{safe(done.path)} is {safe(done.writer)} as it was shipped at {iso(done.at_us)} ({what})")
    out.flush()
    out.note("Messages that were acknowledged after that fire again")
    where = quote(os.path.abspath(path))
    out.note(f"To go on with this bucket, and fence the old wheel: `filewheel -C {where} backup add --take-over {url}`")
