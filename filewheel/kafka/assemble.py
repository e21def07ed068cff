"""A service on a real cluster, put together from its parts.

Invariant: nothing is written and no group is joined before the cluster has all topics that the service needs.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, Protocol, TypeVar

from filewheel.checks import check_choice
from filewheel.env import SYSTEM_CLOCK, Clock, pause
from filewheel.errors import BadArgument, NoBroker
from filewheel.kafka.client.confluent import ConfluentTransport
from filewheel.kafka.client.level_client import ConfluentLevels
from filewheel.kafka.levels.naming import Level
from filewheel.kafka.levels.service import LevelService
from filewheel.kafka.node.note import About
from filewheel.kafka.node.rules import Rules
from filewheel.kafka.node.service import DelayService
from filewheel.kafka.node.settings import NodeSettings
from filewheel.kafka.node.tally import NodeCounters
from filewheel.kafka.node.upkeep import NeedsUpkeep
from filewheel.kafka.partition.data_lock import DataLock
from filewheel.kafka.partition.partition import Partition
from filewheel.kafka.partition.position import RecordOrigin
from filewheel.kafka.records.options import Policy
from filewheel.message import US_PER_S

log = logging.getLogger("filewheel.kafka")

T_co = TypeVar("T_co", covariant=True)

ASK_S = 2.0
"""How long one question for a broker takes while none answers."""
PAUSE_S = 0.5
SAY_S = 30


def delay_service(
    config: Mapping[str, Any],
    policy: Policy,
    data: str | os.PathLike[str],
    *,
    group: str,
    node: str,
    settings: NodeSettings | None = None,
    waits: bool = False,
) -> DelayService:
    """Return the service of one node; its `run` serves. Wheels are kept in `data/<topic>/<partition>/`.

    `config` has the settings of librdkafka for all clients, `bootstrap.servers` at least. `node` names this node: it
    is different on each. With `waits`, wait until a broker answers, for ever; a line of the log says so every 30 s.

    Raises BadArgument without confluent-kafka; NoBroker, MissingTopic, NotAllowed; Locked when another node uses the
    same data.
    """
    settings = settings or NodeSettings()
    if "session.timeout.ms" in config:
        settings = replace(settings, session_s=float(config["session.timeout.ms"]) / 1000)
    transport = ConfluentTransport(
        config, policy, group=group, node=node, exactly_once=settings.exactly_once, session_s=settings.session_s
    )
    topics = _when_there(transport) if waits else transport.check()
    lock = DataLock(data, policy.topic)
    rules = Rules(policy, node, topics.topic_id, exactly_once=settings.exactly_once)

    def open_wheel(partition: int, on_work: Callable[[NeedsUpkeep], None]) -> Partition:
        path = os.path.join(os.fspath(data), policy.topic, str(partition))
        source = RecordOrigin(topics.cluster_id, policy.topic, partition, topics.topic_id, policy.digest)
        return Partition(path, source, keyed=policy.keyed, on_work=on_work)

    tally = NodeCounters(policy.topic, policy.dead_letter_topic)
    service = DelayService(
        transport, open_wheel, rules, rules.understand, settings, topics=topics, tally=tally, lock=lock
    )
    service.node.about = About(
        node=str(config.get("client.id", node)),
        host=socket.gethostname(),
        pid=os.getpid(),
        data=os.path.abspath(data),
        keyed=policy.keyed,
        standby=settings.standby == "all",
        delivery=rules.delivery,
    )
    return service


class _Checked(Protocol[T_co]):
    answer_s: float

    def check(self) -> T_co: ...


def _when_there(transport: _Checked[T_co], clock: Clock = SYSTEM_CLOCK) -> T_co:
    """Return what the cluster has once a broker answers. A signal is handled between two questions."""
    say_us = 0
    usual_s, transport.answer_s = transport.answer_s, ASK_S
    while True:
        try:
            topics = transport.check()
        except NoBroker as exc:
            if clock.steady_us() >= say_us:
                log.warning("%s; waiting for a broker", exc.what)
                say_us = clock.steady_us() + SAY_S * US_PER_S
            pause(PAUSE_S)
        else:
            transport.answer_s = usual_s
            return topics


def level_service(
    config: Mapping[str, Any],
    topic: str,
    levels: Sequence[Level],
    *,
    group: str,
    node: str,
    default_target: str = "",
    on_target_error: Literal["retry", "dead-letter"] = "retry",
    waits: bool = False,
) -> LevelService:
    """Return a service that forwards the records of the topics of levels; its `run` serves. It keeps nothing on disk.

    `topic` is the first part of the topics' names, as in `delays.5s`; `parse_levels("5s,1m")` makes levels. With
    `waits`, wait until a broker answers, for ever.

    Raises BadArgument without levels or without confluent-kafka; NoBroker, MissingTopic, NotAllowed.
    """
    if not levels:
        raise BadArgument("a level is missing", hint="parse_levels('5s,30s,1m')")
    check_choice("on_target_error", on_target_error, ("retry", "dead-letter"))
    rules: dict[str, tuple[Level, Rules]] = {}
    for level in levels:
        policy = level.policy(topic, default_target=default_target, on_target_error=on_target_error)
        rules[policy.topic] = (level, Rules(policy, node, ""))
    names = ",".join(level.name for level in levels)
    init = f"filewheel kafka init --bootstrap {config.get('bootstrap.servers', '')} --topic {topic} --levels {names}"
    transport = ConfluentLevels(config, list(rules), policy.dead_letter_topic, group=group, node=node, init=init)
    if waits:
        _when_there(transport)
    else:
        transport.check()
    return LevelService(transport, rules)
