"""`python -m tests.crash`: run the campaigns with a time budget, or one round again.

`python -m tests.crash --budget 20m` runs all of them on every core, `--only kill` one of them, and `--round kill:7` one
round again, to see what it found. With FILEWHEEL_MUTANT=no-flush, say, all of it runs against a library with that
protection switched off (mutate.py), which has to be there before the library is imported: hence the order of imports.
"""

import tests.crash.mutate  # noqa: F401

# isort: split
from tests.crash.command import main

raise SystemExit(main())
