"""The delay service on Kafka: a record of the delay topic waits in a wheel, and goes to its target when it is due.

Needs the extra `filewheel[kafka]`. Nothing else in filewheel imports this folder. The files in the order of a record:
record, options, headers (what a record asks for), envelope (what waits), partition (where it waits: packing, keyed,
position, waiting), fate (what goes out), marker (what is done). `topics` makes the topics, `assemble` the service.
"""

from filewheel.kafka.assemble import delay_service
from filewheel.kafka.options import Policy
from filewheel.kafka.service import DelayService, PartitionStatus
from filewheel.kafka.settings import Settings
from filewheel.kafka.topics import TopicReport, make_topics

__all__ = ["DelayService", "PartitionStatus", "Policy", "Settings", "TopicReport", "delay_service", "make_topics"]
