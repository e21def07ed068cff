"""`kafka run`: one node of the delay service."""

from __future__ import annotations

import dataclasses
import logging
import os
import socket
import zlib
from typing import Literal

import click

from filewheel.kafka import NodeSettings, Policy, delay_service, repeats_of_other_options

from ...failure import INTERRUPTED
from ...firing import leave_at_once
from ...input.params import DURATION
from ...show.logs import log_lines
from ...show.output import Column, Output
from ...show.text import count
from ...signals import Abort, Quit, Stop, interruptible
from ...times import US_PER_S
from .cluster import Cluster, kafka_verb
from .descriptors import check_limit, raise_limit
from .listening import check_address, listening

log = logging.getLogger("filewheel.kafka")


@kafka_verb(
    "run",
    """
    $ filewheel kafka run -b localhost:9092 -t delays -d /var/lib/delays
    $ filewheel kafka run -b localhost:9092 -t delays -d data --exactly-once
    """,
)
@click.option(
    "-d", "--data", required=True, type=click.Path(file_okay=False), metavar="DIR",
    help="Where the wheels of this node are, on a local disk.",
)  # fmt: skip
@click.option("--group", metavar="NAME", help="The consumer group of all nodes.  [default: filewheel-TOPIC]")
@click.option(
    "--node", metavar="NAME", help="The name of this node, another one on each.  [default: of the host and --data]"
)
@click.option("--exactly-once", is_flag=True, help="Produce in transactions; readers need read_committed.")
@click.option(
    "--standby", type=click.Choice(["none", "all"]), default="none", show_default=True,
    help="all: also keep a wheel of each partition that another node owns, for a quick take-over.",
)  # fmt: skip
@click.option(
    "--on-gap", type=click.Choice(["stop", "skip"]), default="stop", show_default=True,
    help="When the log no longer holds the next record: stop that partition, or go on and count the loss.",
)  # fmt: skip
@click.option(
    "--on-target-error", type=click.Choice(["retry", "dead-letter", "put-back"]), default="retry", show_default=True,
    help="When a target refuses a record.",
)  # fmt: skip
@click.option(
    "--on-missing-target", type=click.Choice(["put-back", "retry", "dead-letter"]), default=None,
    help="When a target does not exist, with retry.  [default: put-back; with --keyed dead-letter]",
)  # fmt: skip
@click.option(
    "--listen", default="", metavar="HOST:PORT",
    help="Answer /metrics (Prometheus) and /health here, e.g. 127.0.0.1:9464.  [default: nowhere]",
)  # fmt: skip
@click.option("--horizon", type=DURATION, metavar="DUR", help="The longest delay of a record.")
@click.option(
    "--on-horizon", type=click.Choice(["dead-letter", "roll"]), default="dead-letter", show_default=True,
    help="A longer delay than --horizon: a dead letter, or back to the delay topic when that has passed.",
)  # fmt: skip
@click.option(
    "--max-clock-offset", type=DURATION, default="5s", show_default=True, metavar="DUR",
    help="Fire nothing while this clock is ahead of the brokers' by more; 0s: always.",
)  # fmt: skip
@click.option("--default-target", default="", metavar="TOPIC", help="The target of records that name none.")
@click.option(
    "--keyed", is_flag=True, help="A record replaces the one that waits with its key; without value: cancels."
)
@click.option(
    "--accept-options", is_flag=True,
    help="Serve with another horizon, default target or --keyed than before: delivers again what --dry-run counts.",
)  # fmt: skip
@click.option("--dry-run", is_flag=True, help="With --accept-options: print what would be delivered again, and exit.")
def run(
    out: Output,
    cluster: Cluster,
    data: str,
    group: str | None,
    node: str | None,
    exactly_once: bool,
    standby: Literal["none", "all"],
    on_gap: Literal["stop", "skip"],
    on_target_error: Literal["retry", "dead-letter", "put-back"],
    on_missing_target: Literal["put-back", "retry", "dead-letter"] | None,
    listen: str,
    horizon: int | None,
    on_horizon: Literal["dead-letter", "roll"],
    max_clock_offset: int,
    default_target: str,
    keyed: bool,
    accept_options: bool,
    dry_run: bool,
) -> None:
    """Run one node of the delay service, until SIGTERM or Ctrl-C.

    Nodes of one --group share the partitions. All need the same --exactly-once, --horizon, --on-horizon,
    --default-target, --keyed and --on-target-error. On stderr it has a line for each partition that it takes over
    or gives away, and for each failure; with -q only those. The first signal lets the records under way arrive and
    exits with 0; a second one leaves at once, and other nodes take over after the session time-out. With --listen,
    /metrics is the text that Prometheus scrapes, and /health is 200 or 503 with the reasons in JSON; anyone who
    reaches the address can read it.
    """
    policy = Policy(
        cluster.topic, default_target=default_target, horizon_s=None if horizon is None else horizon / US_PER_S,
        on_target_error=on_target_error, on_missing_target=on_missing_target or "", keyed=keyed,
    )  # fmt: skip
    settings = NodeSettings(
        exactly_once=exactly_once, standby=standby, on_gap=on_gap, accept_options=accept_options,
        clock_ahead_max_s=max_clock_offset / US_PER_S,
    )  # fmt: skip
    name = node or _name(os.path.abspath(data))
    check_address(listen)
    if dry_run:
        _print_repeats(out, cluster, group, is_asked=accept_options)
        return
    descriptors = raise_limit()
    with log_lines(out, logging.WARNING if out.quiet else logging.INFO), Stop() as stop:
        try:
            service = delay_service(
                cluster.config, policy, os.path.abspath(data), group=group or f"filewheel-{cluster.topic}",
                node=name, settings=settings, waits=True,
            )  # fmt: skip
            check_limit(descriptors, service.partitions, opens_all=standby == "all")
            log.info("node %s, process %d: serves %s", name, os.getpid(), cluster.topic)
            stop.wakes(service.stop)
            with listening(listen, service, {"topic": cluster.topic, "node": name}):
                service.run()
            log.info("node %s has stopped", name)
        except Quit:
            return
        except Abort:
            leave_at_once(INTERRUPTED)


def _print_repeats(out: Output, cluster: Cluster, group: str | None, *, is_asked: bool) -> None:
    """Print what each partition would deliver a second time with other options."""
    if not is_asked:
        raise click.UsageError("--dry-run says what --accept-options would deliver again: give both")
    with interruptible():
        found = repeats_of_other_options(cluster.config, cluster.topic, group=group or f"filewheel-{cluster.topic}")
    if out.wants_json:
        for one in found:
            out.record({**dataclasses.asdict(one), "again": one.again})
    else:
        columns = [Column(name, right=True) for name in ("PARTITION", "FROM", "WAITING", "AGAIN")]
        rows = [(one.partition, one.low, "-" if one.waiting is None else one.waiting, one.again) for one in found]
        out.table(columns, [tuple(map(str, row)) for row in rows])
    out.flush()
    again = sum(one.again for one in found)
    out.note(f"with other options the service delivers up to {count(again, 'record')} a second time")


def _name(data: str) -> str:
    """Return a name for the node with this data: two on one host differ, and it is the same after a restart."""
    return f"{socket.gethostname()}-{zlib.crc32(os.fsencode(data)) & 0xFFFF:04x}"
