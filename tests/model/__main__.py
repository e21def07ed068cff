"""`python -m tests.model SEED`: run one history again, and say what went wrong."""

import sys

from tests.model.history import run_history

result = run_history(int(sys.argv[1]))
print(f"{result.states} states, {result.ops} disk operations, {result.switches} switches, {result.fired} fired")
for line in result.violations:
    print(line)
raise SystemExit(bool(result.violations))
