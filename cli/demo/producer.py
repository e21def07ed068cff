"""The demo's producer: like an application, it continues when its wheel is lost.

`python -m cli.demo.producer RATE WHEEL...` reads messages as JSON lines and enqueues RATE per second into the primary
of these wheels. It writes a line for each confirmed message and for each failed attempt; after a failure it enqueues a
new message.
Invariant: a message is recorded as confirmed only after `enqueue` returned, and outside the wheels.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from typing import Any

from filewheel import Fenced, FilewheelError, MessageId, Wheel
from filewheel.tools.dump import payload_of

_AGAIN_S = 0.02
_PATIENCE_S = 30.0


class Producer:
    """Enqueues into the primary of a set, wherever it is."""

    def __init__(self, paths: list[str]) -> None:
        self._paths = paths
        self._at = 0
        self._wheel: Wheel | None = None

    def enqueue(self, row: dict[str, Any]) -> MessageId:
        """Enqueue a message once. After an error the next call tries another wheel."""
        try:
            if self._wheel is None:
                self._wheel = Wheel(self._paths[self._at])
            headers = row.get("headers", {})
            return self._wheel.enqueue(payload_of(row), delay=row["in"], topic=row["topic"], headers=headers)
        except (FilewheelError, OSError) as exc:
            self._turn(exc)
            raise

    def _turn(self, exc: BaseException) -> None:
        wheel, self._wheel = self._wheel, None
        if wheel is not None:
            with contextlib.suppress(FilewheelError, OSError):  # this wheel fails
                wheel.close()
        primary = exc.primary if isinstance(exc, Fenced) else ""
        if primary in self._paths and os.path.isdir(primary):
            self._at = self._paths.index(primary)
        else:
            self._at = (self._at + 1) % len(self._paths)


def main() -> int:
    """Enqueue the messages of stdin, at the given rate, into the given wheels."""
    rate, paths = float(sys.argv[1]), sys.argv[2:]
    producer = Producer(paths)
    start = time.monotonic()
    for number, line in enumerate(sys.stdin):
        row = json.loads(line)
        time.sleep(max(0.0, start + number / rate - time.monotonic()))
        end = time.monotonic() + _PATIENCE_S
        while True:
            try:
                id_ = producer.enqueue(row)
            except (FilewheelError, OSError) as exc:
                _write({"failed": f"{type(exc).__name__}: {exc}"})
                if time.monotonic() > end:
                    return 1
                time.sleep(_AGAIN_S)
            else:
                _write({"id": str(id_), "copies": getattr(id_, "copies", 1)})
                break
    return 0


def _write(fields: dict[str, Any]) -> None:
    print(json.dumps({"at": time.time(), **fields}), flush=True)


if __name__ == "__main__":
    sys.exit(main())
