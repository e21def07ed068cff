"""The list of sides: the service with each of its promises first, then other ways."""

from __future__ import annotations

from tests.bench.kafka.side import Filewheel, Side

SIDES: list[Side] = [
    Filewheel("alo", "filewheel, at least once"),
    Filewheel("eos", "filewheel, exactly once", ("--exactly-once",)),
    Filewheel("alo-standby", "filewheel, at least once, standbys", ("--standby", "all"), frozenset({"takeover"})),
]
BY_KEY = {side.key: side for side in SIDES}
OURS = frozenset({"alo", "eos", "alo-standby"})
