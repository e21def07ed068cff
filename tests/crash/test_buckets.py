"""One round of the campaign against a real S3 server, where there is one."""

from __future__ import annotations

import pytest

from tests.crash.buckets import missing, play


@pytest.mark.skipif(missing() is not None, reason=str(missing()))
def test_what_is_restored_from_a_real_server_is_what_was_confirmed(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ENDPOINT", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION", "NO_PROXY", "no_proxy"):
        monkeypatch.setenv(name, "")  # what the round sets is taken back
    done = play(1)
    assert not done.wrong
    assert done.counts["restores"]
