"""The delay service on Kafka: a record of the delay topic waits in a wheel, and goes to its target when it is due.

Needs the extra `filewheel[kafka]`. Nothing else in filewheel imports this folder. A record passes through the folders
in this order, and a module imports only from its own folder and from those to its left (tests/test_layers.py):

    records | partition | node | levels | client | topics | produce status | dead | assemble | scheduling

`levels` is a smaller service, without wheels. `topics` makes the topics, `produce` sends records to the delay topic,
`status` and `dead` look at it, `assemble` puts a service together. `scheduling` runs handlers on top of all that.
"""

from filewheel.checks import address_of
from filewheel.kafka.assemble import delay_service, level_service
from filewheel.kafka.dead import DeadLetter, dead_letters, revive
from filewheel.kafka.levels.naming import Level, level_for, parse_levels
from filewheel.kafka.levels.service import LevelService, LevelStatus
from filewheel.kafka.node.health import NodeHealth, Problem
from filewheel.kafka.node.listen import Observed, StatusServer
from filewheel.kafka.node.service import DelayService, PartitionStatus
from filewheel.kafka.node.settings import NodeSettings
from filewheel.kafka.produce.async_producer import AsyncDelayProducer
from filewheel.kafka.produce.delivery import Delivered, Delivery
from filewheel.kafka.produce.producer import DelayProducer
from filewheel.kafka.records.options import Policy
from filewheel.kafka.records.waiting_record import WaitingRecord, waiting_record
from filewheel.kafka.scheduling.scheduler import KafkaScheduler
from filewheel.kafka.status import PartitionReport, Repeats, check_keyed, repeats_of_other_options, service_status
from filewheel.kafka.topics import TopicReport, make_level_topics, make_topics

__all__ = [
    "AsyncDelayProducer",
    "DeadLetter",
    "DelayProducer",
    "DelayService",
    "Delivered",
    "Delivery",
    "KafkaScheduler",
    "Level",
    "LevelService",
    "LevelStatus",
    "NodeHealth",
    "NodeSettings",
    "Observed",
    "PartitionReport",
    "PartitionStatus",
    "Policy",
    "Problem",
    "Repeats",
    "StatusServer",
    "TopicReport",
    "WaitingRecord",
    "address_of",
    "check_keyed",
    "dead_letters",
    "delay_service",
    "level_for",
    "level_service",
    "make_level_topics",
    "make_topics",
    "parse_levels",
    "repeats_of_other_options",
    "revive",
    "service_status",
    "waiting_record",
]
