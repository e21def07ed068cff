"""A node of many partitions needs many descriptors: the limit is raised, and too low a one is named at the start."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path

import pytest

from cli.commands.kafka.descriptors import check_limit
from cli.failure import Failure

_RAISES = """
import resource
from cli.commands.kafka.descriptors import raise_limit
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 200))
print(raise_limit(), resource.getrlimit(resource.RLIMIT_NOFILE))
"""


def test_the_limit_becomes_what_it_may_be() -> None:
    pytest.importorskip("resource")
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", _RAISES], capture_output=True, text=True, cwd=root, check=True)
    assert done.stdout == "200 (200, 200)\n"


def test_a_node_that_opens_all_partitions_is_refused_and_another_is_warned(caplog: pytest.LogCaptureFixture) -> None:
    check_limit(1000, 100, opens_all=True)
    assert caplog.messages == []
    with pytest.raises(Failure, match="101 partitions need about 1009 descriptors, and this process may have 1000"):
        check_limit(1000, 101, opens_all=True)
    with caplog.at_level(logging.WARNING, "filewheel.kafka"):
        check_limit(1000, 101, opens_all=False)
    assert "enough only while other nodes own some of them" in caplog.messages[0]
