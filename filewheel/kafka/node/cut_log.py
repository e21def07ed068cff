"""Whether the log of a partition still has what was read of it, before a node goes on with it.

After an unclean election a log may have other records at offsets that were read before. A wheel does not have those,
and a marker calls some of them done (docs/adr/0074-a-log-that-was-cut.md).
Invariant: nothing is read on, and no step is believed, of a log that does not have the record at which that stopped.
"""

from __future__ import annotations

import logging

from filewheel.errors import Outlived
from filewheel.kafka.node.transport import Transport
from filewheel.kafka.partition.marker import Marker
from filewheel.kafka.records.last_read import LastRead

log = logging.getLogger("filewheel.kafka")


def check_wheel(transport: Transport, partition: int, last_read: LastRead | None, first: int) -> None:
    """Return when the log, which begins at `first`, has the last record that a wheel read.

    Raises Outlived when it was cut; ClusterError.
    """
    # Not known: the wheel is new, or an older release wrote it. Deleted: then the log cannot be compared.
    if last_read is None or last_read.offset < first:  # mutant: kafka-deleted-is-cut
        return
    if not last_read.is_in(transport.first_at(partition, last_read.offset)):  # mutant: kafka-cut-unseen
        raise Outlived(
            f"the log of partition {partition} was cut: at offset {last_read.offset} it has another record than the "
            f"one that was read there (epoch {last_read.epoch})",
            hint="save what only this wheel has by `filewheel dump`, stop the node, remove the directory of the "
            "partition, and start it again: it reads the log anew",
        )


def true_marker(transport: Transport, partition: int, marker: Marker, first: int, known: LastRead | None) -> Marker:
    """Return what a marker says that is true of the log as it is. `known` is a record that the log has.

    Raises Outlived when the log was cut at an unknown place; ClusterError.
    """
    last_read = marker.last_read
    if last_read is None or last_read.offset < first:
        return marker
    if known is not None and known.epoch == last_read.epoch and known.offset >= last_read.offset:
        return marker  # one leader wrote both, so a log with the later one has the other
    if last_read.is_in(transport.first_at(partition, last_read.offset)):
        return marker
    end = transport.parted_at(partition, last_read)
    if end is None:
        raise Outlived(
            f"the log of partition {partition} was cut before offset {last_read.offset}, and the brokers do not say "
            "where: its marker may call records done that never went out",
            hint="append a record without a value and with its key to the topic of markers: then everything that the "
            "log holds goes out again",
        )
    log.error(
        "partition %d: its log was cut; what the marker said of offsets from %d to %d is forgotten: records there "
        "count as new",
        partition,
        end,
        last_read.offset,
    )
    return marker.of_cut_log(end)  # mutant: kafka-steps-of-a-cut-log


def read_to(offset: int, *reads: LastRead | None) -> int:
    """Return the offset behind all that was read: the log must reach as far before it can be compared."""
    return max([offset, *(read.offset + 1 for read in reads if read is not None)])


def is_of_older_log(marker: Marker, last_read: LastRead | None) -> bool:
    """Return whether the owner that made this had not read as late an epoch: the log may have been cut in between.

    A standby drops for good what a marker calls done. Each marker says all that earlier ones said, so the next one
    brings it.
    """
    return marker.last_read is not None and last_read is not None and marker.last_read.epoch < last_read.epoch
