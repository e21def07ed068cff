"""`python -m tests.crash`: run the campaigns with a time budget, or one round again.

python -m tests.crash --budget 20m            all of them, on every core
python -m tests.crash --budget 2m --only kill one of them
python -m tests.crash --round kill:7          one round again, and what it found
"""

from tests.crash.command import main

raise SystemExit(main())
