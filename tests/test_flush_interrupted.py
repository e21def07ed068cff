"""Ctrl-C in a flush, up to the lines that end it: no other thread waits for it afterwards.

Between the last of these lines and the one that notes the end, the interpreter looks at no signal.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from filewheel import Wheel
from filewheel.journal.appender import Appender


@pytest.mark.parametrize("line", range(1, 13))
def test_an_interrupt_before_each_line_of_a_flush_leaves_no_flush_that_others_wait_for(
    wheel_dir: Path, line: int
) -> None:
    with Wheel(wheel_dir) as wheel:
        wheel.enqueue(b"first", sync="never")
        assert wheel._journal is not None
        appender = wheel._journal.appender
        code = Appender.flush_to.__code__
        left = line

        def trace(frame: FrameType, event: str, arg: object) -> Any:
            nonlocal left
            if frame.f_code is not code:
                return None
            if event == "line" and left:
                left -= 1
                if not left:
                    raise KeyboardInterrupt
            return trace

        sys.settrace(trace)
        try:
            with contextlib.suppress(KeyboardInterrupt):
                appender.flush_to(appender.written)
        finally:
            sys.settrace(None)
        done: list[object] = []
        thread = threading.Thread(target=lambda: done.append(wheel.enqueue(b"second")), daemon=True)
        thread.start()
        thread.join(30)
        assert done
