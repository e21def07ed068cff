"""`python -m tests.model SEED`: run one history again, and say what went wrong."""

import sys

from tests.model.history import run_history

raise SystemExit(run_history(int(sys.argv[1])).show())
