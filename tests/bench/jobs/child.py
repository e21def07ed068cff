"""The process of one cell, and the one that fills its system: does what the order on the command line says."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

from tests.bench.cell import as_json
from tests.bench.jobs.measures import dues_us, run_cell
from tests.bench.jobs.systems import BY_KEY
from tests.bench.store import Missing


def main() -> None:
    """Fill, or measure and print the metrics, or why there are none."""
    order = json.loads(sys.argv[1])
    directory = Path(order["directory"])
    if "fill" in order:
        count, lead_us, span_us = order["fill"]
        system = BY_KEY[order["peer"]].system(directory)
        start_us = time.time_ns() // 1000 + lead_us
        system.fill(dues_us(count, start_us, span_us))
        print(start_us)
        return
    try:
        metrics = run_cell(order["peer"], order["workload"], directory, order["seconds"], order["scale"])
    except Missing as exc:
        print(json.dumps({"missing": str(exc)}))
    else:
        print('{"metrics": ' + as_json(metrics) + "}")
    sys.stdout.flush()
    os._exit(0)  # a system that is behind would go on with its backlog


if __name__ == "__main__":
    main()
