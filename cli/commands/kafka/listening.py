"""/metrics and /health beside a service that runs."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Mapping

from filewheel.kafka import Observed, StatusServer, address_of

log = logging.getLogger("filewheel.kafka")


def check_address(text: str) -> None:
    """Raise BadArgument unless it is an address to listen at, or empty: before a broker is waited for."""
    if text:
        address_of(text)


@contextlib.contextmanager
def listening(address: str, service: Observed, labels: Mapping[str, str]) -> Iterator[None]:
    """Answer /metrics and /health while the service runs, if there is an address."""
    if not address:
        yield
        return
    with StatusServer.of(service, address, labels=labels) as listener:
        log.info("/metrics and /health are at %s", listener.url)
        yield
