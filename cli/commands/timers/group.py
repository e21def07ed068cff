"""`timers`: timers in memory, compared and drawn. Its verbs lie beside this module."""

from __future__ import annotations

import click

from ...failure import USAGE
from ...verb import common, examples
from .compare import compare
from .show import show


@click.group(
    "timers",
    invoke_without_command=True,
    subcommand_metavar="VERB ...",
    epilog=examples(
        """
        $ filewheel timers compare
        $ filewheel timers show
        """
    ),
)
@common(wheel=False)
@click.pass_context
def command(ctx: click.Context) -> None:
    """Timers that live in memory and die with the process: filewheel.timers.

    `compare` measures the schemes of the literature beside Python's own timers; `show` draws a wheel as it turns.
    Neither needs a wheel in a directory.
    """
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help(), err=True)
        ctx.exit(USAGE)


for _verb in (compare, show):
    command.add_command(_verb)
