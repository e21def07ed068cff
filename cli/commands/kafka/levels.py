"""`kafka levels`: delays by a topic for each, without wheels."""

from __future__ import annotations

import logging
import os
import socket
from typing import Literal

import click

from filewheel.kafka import level_service, parse_levels

from ...failure import INTERRUPTED
from ...firing import leave_at_once
from ...show.logs import log_lines
from ...show.output import Output
from ...signals import Abort, Quit, Stop
from .cluster import Cluster, kafka_verb
from .listening import check_address, listening

log = logging.getLogger("filewheel.kafka")


@kafka_verb(
    "levels",
    """
    $ filewheel kafka init -b localhost:9092 -t delays --levels 5s,30s,1m,10m
    $ filewheel kafka levels -b localhost:9092 -t delays --levels 5s,30s,1m,10m
    """,
)
@click.option("--levels", required=True, metavar="DUR,DUR,...", help="The delays, ascending: 5s,10s,30s,1m,2h.")
@click.option("--group", metavar="NAME", help="The consumer group.  [default: filewheel-TOPIC.levels]")
@click.option("--node", metavar="NAME", help="The name of this node.  [default: the host's name]")
@click.option(
    "--on-target-error", type=click.Choice(["retry", "dead-letter"]), default="retry", show_default=True,
    help="When a target refuses a record.",
)  # fmt: skip
@click.option(
    "--listen", default="", metavar="HOST:PORT",
    help="Answer /metrics (Prometheus) and /health here, e.g. 127.0.0.1:9464.  [default: nowhere]",
)  # fmt: skip
@click.option("--default-target", default="", metavar="TOPIC", help="The target of records that name none.")
def levels(
    out: Output,
    cluster: Cluster,
    levels: str,
    group: str | None,
    node: str | None,
    on_target_error: Literal["retry", "dead-letter"],
    listen: str,
    default_target: str,
) -> None:
    """Forward the records of topics that each have one delay.

    For who needs a dozen delays and no disk. A producer writes to TOPIC.5s what is to wait 5 seconds, with the target
    in its headers. One reader waits for the head of each partition, and forwards it: at least once, and late by what
    the next longer level adds. Any other delay needs `filewheel kafka run`. Nodes of one --group share the partitions.
    SIGTERM and Ctrl-C let the records under way arrive, and exit with 0.
    """
    name = node or socket.gethostname()
    check_address(listen)
    with log_lines(out, logging.WARNING if out.quiet else logging.INFO), Stop() as stop:
        try:
            service = level_service(
                cluster.config, cluster.topic, parse_levels(levels), group=group or f"filewheel-{cluster.topic}.levels",
                node=name, default_target=default_target, on_target_error=on_target_error,
                waits=True,
            )  # fmt: skip
            log.info("node %s, process %d: forwards %s", name, os.getpid(), levels)
            stop.wakes(service.stop)
            with listening(listen, service, {"topic": cluster.topic, "node": name}):
                service.run()
            log.info("node %s has stopped", name)
        except Quit:
            return
        except Abort:
            leave_at_once(INTERRUPTED)
