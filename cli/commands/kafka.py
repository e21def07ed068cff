"""`kafka`: the delay service on Kafka: its topics, and one node of it."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable
from typing import Any, Literal, TypeVar

import click

from filewheel.kafka import Policy, Settings, TopicReport, delay_service, make_topics

from ..failure import INTERRUPTED, USAGE, Failure
from ..firing import leave_at_once
from ..input.params import DURATION
from ..show.logs import log_lines
from ..show.output import Column, Output
from ..show.text import count
from ..signals import Abort, Quit, Stop, interruptible
from ..times import US_PER_S
from ..verb import common, examples, verb

F = TypeVar("F", bound=Callable[..., Any])
log = logging.getLogger("filewheel.kafka")


@click.group(
    "kafka",
    invoke_without_command=True,
    subcommand_metavar="init | run ...",
    epilog=examples(
        """
        $ filewheel kafka init -b localhost:9092 -t delays
        $ filewheel kafka run -b localhost:9092 -t delays -d /var/lib/delays
        """
    ),
)
@common()
@click.pass_context
def command(ctx: click.Context) -> None:
    """Delay messages of Kafka: they wait in wheels, and go to their topics when they are due.

    Producers write to the delay topic, with the due and the target in headers. Any number of nodes run the service;
    each owns some partitions, with a wheel for each. It needs the extra filewheel[kafka].
    """
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help(), err=True)
        ctx.exit(USAGE)


def _cluster_options(function: F) -> F:
    """Add the options that name the cluster and the delay topic."""
    for option in (
        click.option(
            "-o", "--option", "options", multiple=True, metavar="KEY=VALUE",
            help="A setting of librdkafka, such as security.protocol=SASL_SSL. May be given several times.",
        ),
        click.option(
            "-t", "--topic", required=True, metavar="TOPIC", envvar="FILEWHEEL_KAFKA_TOPIC", show_envvar=True,
            help="The delay topic.",
        ),
        click.option(
            "-b", "--bootstrap", required=True, metavar="HOST:PORT,...", envvar="FILEWHEEL_KAFKA_BOOTSTRAP",
            show_envvar=True, help="Brokers to ask first.",
        ),
    ):  # fmt: skip
        function = option(function)
    return function


def _config(bootstrap: str, options: tuple[str, ...]) -> dict[str, str]:
    config = {"bootstrap.servers": bootstrap}
    for option in options:
        key, equals, value = option.partition("=")
        if not equals or not key:
            raise click.UsageError(f"-o takes KEY=VALUE, not {option!r}")
        config[key] = value
    return config


# -- init -----------------------------------------------------------------------------------------------------


@verb(
    "init",
    """
    $ filewheel kafka init -b localhost:9092 -t delays --partitions 12
    $ filewheel kafka init -b localhost:9092 -t delays --retention 14d --alter
    """,
)
@_cluster_options
@click.option(
    "--partitions", type=click.IntRange(1), default=12, show_default=True, metavar="N",
    help="Of a delay topic that is made: two to four times the number of nodes.",
)  # fmt: skip
@click.option(
    "--replication", type=click.IntRange(1), metavar="N", help="Copies of each partition.  [default: the brokers']"
)
@click.option(
    "--retention", type=DURATION, metavar="DUR",
    help="How long the delay topic keeps a record: longer than the longest delay and outage together.  "
    "[default: for ever]",
)  # fmt: skip
@click.option("--alter", is_flag=True, help="Change wrong settings of topics that exist.")
def init(
    out: Output,
    bootstrap: str,
    topic: str,
    options: tuple[str, ...],
    partitions: int,
    replication: int | None,
    retention: int | None,
    alter: bool,
) -> None:
    """Make the topics of a delay service, or check those that exist.

    It makes TOPIC, TOPIC.cursor (the markers of what is done, compacted) and TOPIC.dlt (dead letters). Wrong settings
    of existing topics are listed, and it exits with 3; --alter changes them.
    """
    with interruptible():
        made = make_topics(
            _config(bootstrap, options), Policy(topic), partitions=partitions, replication=replication or -1,
            retention_s=None if retention is None else retention / US_PER_S, alter=alter,
        )  # fmt: skip
    _print(out, made)
    wrong = sum(len(report.wrong) for report in made)
    if wrong:
        raise Failure("partly", f"{count(wrong, 'setting is', 'settings are')} wrong", hint="--alter changes them")


def _print(out: Output, made: list[TopicReport]) -> None:
    if out.wants_json:
        for report in made:
            out.record(
                {
                    "topic": report.name,
                    "partitions": report.partitions,
                    "is_new": report.is_new,
                    "added": report.added,
                    "altered": list(report.altered),
                    "wrong": {key: {"is": found, "needs": needed} for key, (found, needed) in report.wrong.items()},
                }
            )
    else:
        rows = [(report.name, str(report.partitions), _state(report)) for report in made]
        out.table([Column("TOPIC", 60), Column("PARTITIONS", right=True), Column("STATE", 200)], rows)
    out.flush()


def _state(report: TopicReport) -> str:
    if report.is_new:
        return "made"
    parts = [f"{count(report.added, 'partition')} added"] if report.added else []
    parts += [f"{key} changed" for key in report.altered]
    parts += [f"{key} is {found}, and has to be {needed}" for key, (found, needed) in report.wrong.items()]
    return "; ".join(parts) or "exists"


# -- run ------------------------------------------------------------------------------------------------------


@verb(
    "run",
    """
    $ filewheel kafka run -b localhost:9092 -t delays -d /var/lib/delays
    $ filewheel kafka run -b localhost:9092 -t delays -d data --exactly-once
    """,
)
@_cluster_options
@click.option(
    "-d", "--data", required=True, type=click.Path(file_okay=False), metavar="DIR", envvar="FILEWHEEL_KAFKA_DATA",
    show_envvar=True, help="Where the wheels of this node are, on a local disk.",
)  # fmt: skip
@click.option("--group", metavar="NAME", help="The consumer group of all nodes.  [default: filewheel-TOPIC]")
@click.option("--node", metavar="NAME", help="The name of this node, another one on each.  [default: the host's name]")
@click.option("--exactly-once", is_flag=True, help="Produce in transactions; readers need read_committed.")
@click.option(
    "--standby", type=click.Choice(["none", "all"]), default="none", show_default=True,
    help="all: also keep a wheel of each partition that another node owns, for a quick take-over.",
)  # fmt: skip
@click.option(
    "--on-gap", type=click.Choice(["fail", "skip"]), default="fail", show_default=True,
    help="When the log no longer holds the next record: stop that partition, or go on and count the loss.",
)  # fmt: skip
@click.option(
    "--on-target-error", type=click.Choice(["retry", "dead-letter", "put-back"]), default="retry", show_default=True,
    help="When a target refuses a record.",
)  # fmt: skip
@click.option("--horizon", type=DURATION, metavar="DUR", help="The longest delay; a longer one is a dead letter.")
@click.option("--default-target", default="", metavar="TOPIC", help="The target of records that name none.")
@click.option(
    "--keyed", is_flag=True, help="A record replaces the one that waits with its key; without value: cancels."
)
def run(
    out: Output,
    bootstrap: str,
    topic: str,
    options: tuple[str, ...],
    data: str,
    group: str | None,
    node: str | None,
    exactly_once: bool,
    standby: Literal["none", "all"],
    on_gap: Literal["fail", "skip"],
    on_target_error: Literal["retry", "dead-letter", "put-back"],
    horizon: int | None,
    default_target: str,
    keyed: bool,
) -> None:
    """Run one node of the delay service, until SIGTERM or Ctrl-C.

    Nodes of one --group share the partitions. All need the same --exactly-once, --horizon, --default-target, --keyed
    and --on-target-error. On stderr it has a line for each partition that it takes over or gives away, and for each
    failure; with -q only those. The first signal lets the records under way arrive and exits with 0; a second one
    leaves at once, and other nodes take over after the session time-out.
    """
    policy = Policy(
        topic, default_target=default_target, horizon_s=None if horizon is None else horizon / US_PER_S,
        on_target_error=on_target_error, keyed=keyed,
    )  # fmt: skip
    settings = Settings(exactly_once=exactly_once, standby=standby, on_gap=on_gap)
    name = node or socket.gethostname()
    with log_lines(out, logging.WARNING if out.quiet else logging.INFO), Stop() as stop:
        try:
            service = delay_service(
                _config(bootstrap, options), policy, os.path.abspath(data), group=group or f"filewheel-{topic}",
                node=name, settings=settings,
            )  # fmt: skip
            log.info("node %s, process %d: serves %s", name, os.getpid(), topic)
            stop.wakes(service.stop)
            service.run()
            log.info("node %s has stopped", name)
        except Quit:
            return
        except Abort:
            leave_at_once(INTERRUPTED)


command.add_command(init)
command.add_command(run)
