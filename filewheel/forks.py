"""Whether this process was forked off since something was opened, without asking the kernel each time.

Asking for the number of the process costs a tenth of an enqueue that is not flushed.
Invariant: in a child `count` is another than in its parent when that forked.
"""

from __future__ import annotations

import os

count = 0


def _in_child() -> None:
    global count
    count += 1


os.register_at_fork(after_in_child=_in_child)
