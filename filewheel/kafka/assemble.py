"""A service on a real cluster, put together from its parts.

Invariant: nothing is written and no group is joined before the cluster has all topics that the service needs.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

from filewheel.kafka.client.confluent import ConfluentTransport
from filewheel.kafka.node.rules import Rules
from filewheel.kafka.node.service import DelayService
from filewheel.kafka.node.settings import Settings
from filewheel.kafka.node.tally import Tally
from filewheel.kafka.node.upkeep import Kept
from filewheel.kafka.partition.partition import Partition
from filewheel.kafka.partition.position import Source
from filewheel.kafka.records.options import Policy


def delay_service(
    config: Mapping[str, Any],
    policy: Policy,
    data: str | os.PathLike[str],
    *,
    group: str,
    node: str,
    settings: Settings | None = None,
) -> DelayService:
    """Return the service of one node; its `run` serves. Wheels are kept in `data/<topic>/<partition>/`.

    `config` has the settings of librdkafka for all clients, `bootstrap.servers` at least. `node` names this node: it
    is different on each.

    Raises BadArgument without confluent-kafka; NoBroker, MissingTopic, NotAllowed.
    """
    settings = settings or Settings()
    transport = ConfluentTransport(
        config, policy, group=group, node=node, exactly_once=settings.exactly_once, session_s=settings.session_s
    )
    topics = transport.check()
    rules = Rules(policy, node, topics.topic_id)

    def open_wheel(partition: int, on_work: Callable[[Kept], None]) -> Partition:
        path = os.path.join(os.fspath(data), policy.topic, str(partition))
        source = Source(topics.cluster_id, policy.topic, partition, topics.topic_id)
        return Partition(path, source, keyed=policy.keyed, on_work=on_work)

    tally = Tally(policy.topic, policy.dead_letter_topic)
    return DelayService(transport, open_wheel, rules, rules.understand, settings, topics=topics, tally=tally)
