"""The process of one cell: runs it, and prints its metrics, or why there are none."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tests.bench.cell import as_json, run_cell
from tests.bench.store import Missing
from tests.bench.workloads import BY_NAME


def main() -> None:
    """Run the cell that the command line names."""
    order = json.loads(sys.argv[1])
    try:
        metrics = run_cell(
            order["peer"], BY_NAME[order["workload"]].run, Path(order["directory"]),
            order["seconds"], order["scale"], order["seed"],
        )  # fmt: skip
    except Missing as exc:
        print(json.dumps({"missing": str(exc)}))
    else:
        print('{"metrics": ' + as_json(metrics) + "}")


if __name__ == "__main__":
    main()
