"""`kafka init`: the topics of a delay service, made or checked."""

from __future__ import annotations

import functools

import click

from filewheel.kafka import Policy, TopicReport, make_level_topics, make_topics, parse_levels

from ...failure import Failure
from ...input.params import DURATION
from ...show.output import Column, Output
from ...show.text import count
from ...signals import interruptible
from ...times import US_PER_S
from .cluster import Cluster, kafka_verb


@kafka_verb(
    "init",
    """
    $ filewheel kafka init -b localhost:9092 -t delays --partitions 12
    $ filewheel kafka init -b localhost:9092 -t delays --retention 14d --alter
    """,
)
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
    "A topic that keeps them longer stays as it is.  [default: for ever]",
)  # fmt: skip
@click.option("--levels", default="", metavar="DUR,DUR,...", help="Make TOPIC.5s and so on, for `kafka levels`.")
@click.option("--alter", is_flag=True, help="Change wrong settings of topics that exist.")
def init(
    out: Output,
    cluster: Cluster,
    partitions: int,
    replication: int | None,
    retention: int | None,
    levels: str,
    alter: bool,
) -> None:
    """Make the topics of a delay service, or check those that exist.

    It makes TOPIC, TOPIC.cursor (the markers of what is done, compacted) and TOPIC.dlt (dead letters). Wrong settings
    of existing topics are listed, and it exits with 3; --alter changes them. With --levels it makes a topic for each
    delay, which keeps its records for a week and at least twice the delay, and TOPIC.dlt.
    """
    with interruptible():
        make = (
            functools.partial(make_level_topics, cluster.config, cluster.topic, parse_levels(levels))
            if levels
            else functools.partial(make_topics, cluster.config, Policy(cluster.topic))
        )
        made = make(
            partitions=partitions, replication=replication or -1,
            retention_s=None if retention is None else retention / US_PER_S, alter=alter,
        )  # fmt: skip
    _print(out, made)
    delays = made[:-1] if levels else made[:1]
    if _is_given("partitions"):
        _say_partitions_stay(out, delays, partitions)
    _say_what_stays(out, made, replication)
    wrong = sum(len(report.wrong) for report in made)
    if wrong:
        raise Failure("partly", f"{count(wrong, 'setting is', 'settings are')} wrong", hint="--alter changes them")


def _is_given(option: str) -> bool:
    source = click.get_current_context().get_parameter_source(option)
    return source is not click.core.ParameterSource.DEFAULT


def _say_partitions_stay(out: Output, delays: list[TopicReport], partitions: int) -> None:
    for report in delays:
        if report.partitions != partitions:
            out.warn(
                f"{report.name} has {count(report.partitions, 'partition')}, not {partitions:,}: --partitions is for a "
                "topic that is made, and changes none that exists"
            )


def _say_what_stays(out: Output, made: list[TopicReport], replication: int | None) -> None:
    """Warn of what was asked for and changes nothing, because the topics exist."""
    for report in made:
        if replication is not None and report.replicas not in (None, replication):
            out.warn(
                f"{report.name} has {count(report.replicas or 0, 'copy', 'copies')} of a partition, not {replication}: "
                "--replication is for a topic that is made; kafka-reassign-partitions changes one that exists"
            )
        if "retention.ms" in report.kept:
            found, asked = report.kept["retention.ms"]
            kept = "for ever" if found == "-1" else f"for {found} ms"
            out.warn(
                f"{report.name} keeps its records {kept}, longer than the {asked} ms asked for, and stays so; "
                f"kafka-configs --alter --add-config retention.ms={asked} shortens it"
            )


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
                    "kept": {key: {"is": found, "asked": asked} for key, (found, asked) in report.kept.items()},
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
