"""`timers`: timers in memory, drawn. Its verb lies beside this module."""

from __future__ import annotations

import click

from ...failure import USAGE
from ...verb import common, examples
from .show import show


@click.group(
    "timers",
    invoke_without_command=True,
    subcommand_metavar="VERB ...",
    epilog=examples(
        """
        $ filewheel timers show
        """
    ),
)
@common(wheel=False)
@click.pass_context
def command(ctx: click.Context) -> None:
    """Timers that live in memory and die with the process: filewheel.timers.

    `show` draws a wheel as it turns. It needs no wheel in a directory.
    """
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help(), err=True)
        ctx.exit(USAGE)


command.add_command(show)
