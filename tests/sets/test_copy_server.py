"""`filewheel copy-server` as a process behind a program that stands for ssh: killed, frozen, missing, too new.

With an ssh server on this machine, one test goes through that.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

import filewheel.sets.remote
from filewheel import Keeper, NoWheel, Replicator, Wheel, add_backup, promote
from filewheel.disk.directory import open_directory
from filewheel.sets.remote import GREETING, PROTOCOL, channel_to
from filewheel.sets.status import set_status
from filewheel.tools.diff import differences
from filewheel.tools.verify import verify
from tests.sets.support import assert_prefix
from tests.support import REPO, eventually

COMMAND = f"{sys.executable} -m filewheel"


class Far:
    """A far machine: a directory, and a program that starts commands there."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.path = path
        self.copy = path / "far" / "copy"
        self.copy.parent.mkdir()
        self.pid_file = path / "pid"
        self.ssh = path / "ssh"
        self.url = f"ssh://far.example{quote(str(self.copy))}?command={quote(COMMAND)}"
        self.runs("echo $$ > " + str(self.pid_file) + '; exec sh -c "exec $*"')
        monkeypatch.setenv("FILEWHEEL_SSH", str(self.ssh))
        monkeypatch.setenv("PYTHONPATH", str(REPO))

    def runs(self, script: str) -> None:
        """Let ssh do this; `$*` is the command."""
        skip = 'while :; do case "$1" in -o|-p) shift 2;; *) break;; esac; done; shift'
        new = self.ssh.with_name("ssh.new")
        new.write_text(f"#!/bin/sh\n{skip}\n{script}\n")
        new.chmod(0o700)
        new.replace(self.ssh)

    def kill(self, number: signal.Signals = signal.SIGKILL) -> None:
        """Send a signal to the far end that was started last."""
        with contextlib.suppress(ProcessLookupError, FileNotFoundError, ValueError):
            os.kill(int(self.pid_file.read_text()), number)


@pytest.fixture
def far(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Far:
    return Far(tmp_path, monkeypatch)


@pytest.fixture
def primary(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "primary"
    Wheel.create(path, slots=60).close()
    yield path
    assert not verify(open_directory(path, write=False)).damage


def why(primary: Path) -> str:
    status = set_status(primary)
    assert status is not None
    return status.members[0].why


def assert_same(primary: Path, copy: Path) -> None:
    assert_prefix(primary, copy, "ship")
    assert not verify(open_directory(copy, write=False)).damage
    with Wheel(primary) as one, Wheel(copy) as other:
        assert list(differences(one, other)) == []


def test_a_far_end_that_is_killed_again_and_again_is_a_prefix_and_equal_in_the_end(primary: Path, far: Far) -> None:
    rng = random.Random(3)
    add_backup(primary, far.url)
    with (
        Replicator(primary, interval_s=0.002) as replicator,
        Wheel(primary, sync="never") as wheel,
        Keeper(primary) as k,
    ):
        service = threading.Thread(target=replicator.run)
        service.start()
        try:
            for _ in range(6):
                for _ in range(rng.randrange(20, 120)):
                    wheel.enqueue_many([b"x" * rng.choice([1, 2000])] * 5, delay=[0, 1, 5, 60, 5000])
                    k.ack(k.claim(100, wait=False))
                far.kill()
                assert_prefix(primary, far.copy, "ship")
                with contextlib.suppress(NoWheel):  # its first moment
                    assert not verify(open_directory(far.copy, write=False)).damage
            # the last kill may not have been met yet
            last = wheel.enqueue(b"the last", delay=9999)
            eventually(lambda: holds(far.copy, last))
        finally:
            replicator.stop()
            service.join()
    with Replicator(primary) as replicator:
        assert not replicator.once()[0].error
    assert_same(primary, far.copy)


def test_a_slow_line_that_is_cut_in_the_middle_of_messages_leaves_prefixes_and_is_equal_in_the_end(
    primary: Path, far: Far, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(4)
    add_backup(primary, far.url)
    relay = f"{sys.executable} {REPO}/tests/sets/relay.py"
    cuts = 0
    with Wheel(primary, sync="never") as wheel, Keeper(primary, background=False) as keeper:
        for _ in range(8):
            wheel.enqueue_many([b"x" * rng.choice([1, 3000])] * 60, delay=[0, 1, 60, 5000] * 15)
            keeper.ack(keeper.claim(100, wait=False))
            monkeypatch.setenv("FILEWHEEL_SSH", f"{relay} 2 {rng.choice([700, 3000, 20_000, 100_000])}")
            with Replicator(primary) as replicator:
                cuts += "lost" in replicator.once()[0].error
            assert_prefix(primary, far.copy, "ship")
            assert not verify(open_directory(far.copy, write=False)).damage
        assert cuts > 1
        monkeypatch.setenv("FILEWHEEL_SSH", f"{relay} 2 0")
        with Replicator(primary) as replicator:
            assert not replicator.once()[0].error
    assert_same(primary, far.copy)


def holds(path: Path, id_: object) -> bool:
    with Wheel(path) as wheel:
        return wheel.get(id_) is not None  # type: ignore[arg-type]


def test_a_frozen_far_end_is_named_in_time_and_nothing_else_waits(
    primary: Path, far: Far, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(filewheel.sets.remote, "ANSWER_S", 1.0)
    add_backup(primary, far.url)
    add_backup(primary, primary.with_name("other"))
    with Replicator(primary, interval_s=0.01) as replicator, Wheel(primary) as wheel:
        service = threading.Thread(target=replicator.run)
        service.start()
        try:
            eventually(lambda: [r.state for r in replicator.status()] == ["following"] * 2)
            far.kill(signal.SIGSTOP)
            frozen = far.pid_file.read_text()
            id_ = wheel.enqueue(b"x", delay=60)
            eventually(lambda: holds(primary.with_name("other"), id_))
            eventually(lambda: "does not answer" in why(primary))
            # a new connection does not wait for the old one, whose process was ended with it
            eventually(lambda: far.pid_file.read_text() != frozen)
            eventually(lambda: holds(far.copy, id_))
        finally:
            replicator.stop()
            service.join()
    assert_same(primary, far.copy)


@pytest.mark.parametrize(
    ("script", "says", "hint"),
    [
        ("exec sh -c 'exec no-such-program'", "the program was not found over there", "command=/path"),
        ("echo 'Host key verification failed.' >&2; exit 255", "Host key verification failed", "BatchMode"),
        ("echo Welcome to this machine; sleep 9", "says b'Welcome to this machine", "its shell prints"),
        (f"echo '{GREETING.decode()}{PROTOCOL + 1} 9.9'; sleep 9", "filewheel 9.9 over there speaks", "same version"),
        ("exit 0", "the connection was lost", "tries again by itself"),
    ],
)
def test_each_trouble_of_a_connection_says_what_it_is_and_what_to_do(
    primary: Path, far: Far, script: str, says: str, hint: str
) -> None:
    far.runs(script)
    with pytest.raises(NoWheel) as caught:
        add_backup(primary, far.url)
    assert says in caught.value.what
    assert hint in str(caught.value.hint)
    with Wheel(primary) as wheel:
        assert wheel.roster() is None


def test_a_far_end_that_never_greets_is_given_up(far: Far, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filewheel.sets.remote, "ANSWER_S", 0.2)
    far.runs("exec sleep 60")
    with pytest.raises(NoWheel, match="does not answer"):
        channel_to(far.url)


def test_without_ssh_the_error_says_so(far: Far, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FILEWHEEL_SSH", "/no/such/ssh")
    with pytest.raises(NoWheel, match="/no/such/ssh cannot be started"):
        channel_to(far.url)


def test_a_far_end_ends_with_its_stdin_and_lets_go_of_its_lock(primary: Path, far: Far) -> None:
    add_backup(primary, far.url)
    server = subprocess.Popen(
        [*COMMAND.split(), "copy-server", str(far.copy)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=REPO
    )
    assert server.stdout is not None
    assert server.stdin is not None
    assert server.stdout.readline().startswith(GREETING)
    server.stdin.close()
    assert server.wait(20) == 0
    server.stdout.close()


def test_after_the_loss_of_the_first_machine_the_far_copy_is_promoted_and_fires(primary: Path, far: Far) -> None:
    add_backup(primary, far.url)
    with Wheel(primary) as wheel:
        wheel.enqueue_many([b"%d" % n for n in range(100)], delay=0.01)
    with Replicator(primary) as replicator:
        assert not replicator.once()[0].error
    lost = primary.rename(primary.with_name("lost"))
    promote(far.copy)
    with Keeper(far.copy) as keeper:
        fired: set[bytes] = set()
        eventually(lambda: len(fired) == 100 or bool(fired.update(m.payload for m in keeper.claim(100))))
        assert len(fired) == 100
    lost.rename(primary)


# -- a real ssh ------------------------------------------------------------------------------------------------


@pytest.fixture
def sshd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """An ssh server of this user on a port of its own."""
    program = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    if program is None or shutil.which("ssh") is None:
        pytest.skip("no sshd on this machine (Debian: openssh-server)")
    for name in ("host", "user"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / name], check=True)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    (tmp_path / "authorized").write_bytes((tmp_path / "user.pub").read_bytes())
    (tmp_path / "config").write_text(
        f"Port {port}\nListenAddress 127.0.0.1\nHostKey {tmp_path}/host\nPidFile none\nStrictModes no\n"
        f"AuthorizedKeysFile {tmp_path}/authorized\nUsePAM no\nPasswordAuthentication no\nPermitRootLogin yes\n"
    )
    Path("/run/sshd").mkdir(exist_ok=True) if os.geteuid() == 0 else None
    log = (tmp_path / "sshd.log").open("wb")
    server = subprocess.Popen([program, "-D", "-e", "-f", str(tmp_path / "config")], stderr=log)
    monkeypatch.setenv(
        "FILEWHEEL_SSH", f"ssh -F none -i {tmp_path}/user -o UserKnownHostsFile={tmp_path}/known -o LogLevel=ERROR"
    )

    def answers() -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return True
        return False

    eventually(answers)
    yield port
    server.terminate()
    server.wait()
    log.close()


def test_a_backup_through_a_real_ssh_needs_a_known_host_and_is_the_same(
    primary: Path, tmp_path: Path, sshd: int
) -> None:
    copy = tmp_path / "over there"
    command = quote(f"env PYTHONPATH={REPO} {COMMAND}")
    url = f"ssh://127.0.0.1:{sshd}{quote(str(copy))}?command={command}"
    with pytest.raises(NoWheel, match="Host key verification failed"):
        add_backup(primary, url)
    key = (tmp_path / "host.pub").read_text()
    (tmp_path / "known").write_text(f"[127.0.0.1]:{sshd} {key}")
    add_backup(primary, url)
    with Wheel(primary) as wheel:
        wheel.enqueue_many([b"x"] * 1000, delay=600)
    with Replicator(primary) as replicator:
        assert not replicator.once()[0].error
    assert_same(primary, copy)
