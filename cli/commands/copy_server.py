"""`copy-server`: the far end of a backup on another machine, which ssh starts there."""

from __future__ import annotations

import click

from filewheel import __version__
from filewheel.tools.copy_server import serve_copy

from ..show.output import Output
from ..verb import verb


@verb(
    "copy-server",
    """
    $ filewheel copy-server copy.wheel < /dev/null
    """,
    wheel=False,
)
@click.argument("path", metavar="DIR", type=click.Path(file_okay=False))
def command(out: Output, path: str) -> None:
    """Serve the backup in DIR to a replicator on another machine, over stdin and stdout.

    ssh starts this for a backup at `ssh://host/DIR` (`filewheel backup add`); nobody else has to. DIR is made if it
    is not there. Nothing listens on a port. It ends when stdin does, or when nothing comes for 90 seconds.
    """
    with open(0, "rb", buffering=0, closefd=False) as inward, open(1, "wb", buffering=0, closefd=False) as outward:
        serve_copy(path, inward, outward, version=__version__)
