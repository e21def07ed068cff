"""`kafka`: the delay service on Kafka. Its verbs lie beside this module."""

from __future__ import annotations

import click

from ...failure import USAGE
from ...verb import common, examples
from .cancel import cancel
from .dead import dead
from .init import init
from .inspect import inspect
from .levels import levels
from .produce import produce
from .run import run
from .status import status


@click.group(
    "kafka",
    invoke_without_command=True,
    subcommand_metavar="VERB ...",
    epilog=examples(
        """
        $ filewheel kafka init -b localhost:9092 -t delays
        $ filewheel kafka run -b localhost:9092 -t delays -d /var/lib/delays
        $ filewheel kafka produce -c kafka.toml --in 5m --target mails 'hello ann'
        $ filewheel kafka status -b localhost:9092 -t delays
        """
    ),
)
@common(wheel=False)
@click.pass_context
def command(ctx: click.Context) -> None:
    """Delay messages of Kafka: they wait in wheels, and go to their topics when they are due.

    Producers write to the delay topic, with the due and the target in headers. Any number of nodes run the service;
    each owns some partitions, with a wheel for each. It needs the extra filewheel[kafka].

    Each option of a verb may also be set by a variable, as FILEWHEEL_KAFKA_TOPIC for --topic, or in the TOML file of
    --config, as topic = "delays". The command line counts before the variable, and the variable before the file.
    """
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help(), err=True)
        ctx.exit(USAGE)


for _verb in (init, run, produce, cancel, status, inspect, dead, levels):
    command.add_command(_verb)
