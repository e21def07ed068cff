"""No need of another place: a wheel on a good disk works whatever the temporary directory is like."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.conftest import assert_whole
from tests.support_mounts import NO_TEMPORARY_DIRECTORY, PLACE, filewheel_in, python_in

FULL_TEMPORARY_DIRECTORY = """
for one in /tmp /var/tmp /usr/tmp; do
    if test -d $one; then mount -t tmpfs -o size=4k,nr_inodes=2 none $one; : > $one/full; fi
done
cd /var/tmp
"""
TEMPORARY = pytest.mark.parametrize(
    "setup", [NO_TEMPORARY_DIRECTORY, FULL_TEMPORARY_DIRECTORY], ids=["read-only", "full"]
)

LIBRARY = f"""
import asyncio, sys, tempfile
import filewheel
from filewheel import AsyncWheel, Keeper, Wheel
try:
    with tempfile.TemporaryFile() as file:
        file.write(bytes(1 << 16))
    sys.exit("there is a temporary directory")
except OSError:
    pass
path = "{PLACE}/w"
with Wheel.open_or_create(path) as wheel:
    wheel.enqueue(b"one", key="k")
    wheel.cancel(wheel.enqueue(b"two", delay=60))
    wheel.pause(topic="x")
    wheel.resume(topic="x")
with Keeper(path) as keeper:
    for batch in keeper.batches(wait=False):
        keeper.ack(batch)

async def main():
    async with AsyncWheel(path) as wheel:
        await wheel.enqueue(b"three", delay=60)

asyncio.run(main())
print(*(m.payload.decode() for m in Wheel(path).list()))
"""


@TEMPORARY
def test_the_library_needs_no_temporary_directory(tmp_path: Path, setup: str) -> None:
    assert python_in(tmp_path, setup, LIBRARY).out == "three\n"
    assert_whole(tmp_path / "w")


@TEMPORARY
def test_no_verb_needs_a_temporary_directory(tmp_path: Path, setup: str) -> None:
    def fw(*args: object, stdin: str | None = None, code: int = 0) -> list[str]:
        return filewheel_in(tmp_path, setup, *args, stdin=stdin, code=code).lines

    fw("init")
    (id_,) = fw("enqueue", "--in", "1h", "later")
    lines = "".join(json.dumps({"in": "0s", "payload": f"line {n}"}) + "\n" for n in range(3))
    assert len(fw("enqueue", "--batch", stdin=lines)) == 3
    assert len(fw("run", "--once")) == 3
    fw("enqueue", "--in", "0", "--topic", "t", "x" * 100_000)
    fw("run", "--once", "--retries", "0", "--", "sh", "-c", f"cat > {PLACE}/body")
    assert (tmp_path / "body").read_text() == "x" * 100_000
    fw("schedule", "each", "@daily", "y")
    assert len(fw("dump")) == 3
    fw("unschedule", "each")
    fw("reschedule", "--in", "2h", id_)
    fw("cancel", "--all", "--yes")
    fw("health", "--no-keeper")
    fw("doctor")
    fw("verify")
    assert_whole(tmp_path / "w")
