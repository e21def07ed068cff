"""`man`: the manual page, made from the help of all verbs."""

from __future__ import annotations

import shutil
import subprocess

import click

from filewheel import __version__

from ..failure import MEANING
from ..show.output import Output
from ..show.roff import page
from ..verb import verb


@verb(
    "man",
    """
    $ filewheel man > /tmp/filewheel.1
    """,
    wheel=False,
)
@click.pass_context
def command(ctx: click.Context, out: Output) -> None:
    """Show the manual page.

    On a terminal man(1) shows it; piped it is the page itself, in roff. Write it to a directory of the manual, as in
    `filewheel man > ~/.local/share/man/man1/filewheel.1`, and `man filewheel` finds it.
    """
    root = ctx.find_root().command
    assert isinstance(root, click.Group)
    text = page(root, __version__, MEANING)
    shower = shutil.which("man") if out.stdout_is_terminal else None
    if shower is None or subprocess.run([shower, "-l", "-"], input=text.encode(), check=False).returncode:
        out.raw(text.encode())
