"""The list of sides: the service with each of its promises first, then other ways."""

from __future__ import annotations

from tests.bench.kafka.side import Filewheel, Levels, PutBack, Side
from tests.bench.kafka.streams.side import Streams

SIDES: list[Side] = [
    Filewheel("alo", "filewheel, at least once"),
    Filewheel("eos", "filewheel, exactly once", ("--exactly-once",)),
    Filewheel("alo-standby", "filewheel, at least once, standbys", ("--standby", "all"), frozenset({"takeover"})),
    Streams("streams", "Kafka Streams, at least once", "at_least_once"),
    Streams("streams-eos", "Kafka Streams, exactly once", "exactly_once_v2"),
    Levels("levels", "filewheel kafka levels: 5s, 10s, 30s, 1m", "5s,10s,30s,1m", frozenset({"late"})),
    PutBack("putback", "put it back, with a pause", frozenset({"late"})),
]
BY_KEY = {side.key: side for side in SIDES}
