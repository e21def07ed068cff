"""`backup add` of a bucket, and `restore`: what they print, and how they end."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("obstore", reason="the extra `objects` is not installed")

from tests.cli.support import Fw, invoke
from tests.conftest import assert_whole


def test_a_wheel_is_shipped_to_a_bucket_and_restored(tmp_path: Path) -> None:
    a, url, restored = Fw(tmp_path / "a"), f"file://{tmp_path}/bucket/jobs", tmp_path / "r"
    a("init")
    a("enqueue", "--in", "1h", "one")
    added = a("backup", "add", url, "--keep", "1d").json[0]
    assert (added["path"], added["copied"]["state"]) == (url, "following")
    assert "the rules of the set have changed" in a("backup", "add", url, "--keep", "2d", "--no-json").out
    a("enqueue", "--in", "1h", "two")
    a("replicate", "--once")
    assert [line["state"] for line in a("backup", "list").json] == ["current"]

    done = invoke("restore", url, str(restored), "--json")
    assert done.code == 0
    assert done.json[0]["objects"] == 2
    assert "were acknowledged after that fire again" in done.err
    assert f"backup add --take-over {url}" in done.err
    assert invoke("diff", str(a.wheel), str(restored)).code == 0
    assert_whole(restored)

    again = invoke("restore", url, str(restored))
    assert again.code != 0
    assert "there is a wheel already" in again.err
    early = invoke("restore", "--at", "2001-01-01T00:00Z", url, str(tmp_path / "early"))
    assert early.code != 0
    assert "no copy of that time" in early.err
    assert "look at the URL" in early.err
    late = invoke("restore", "--at", "in 2 hours", url, str(tmp_path / "late"))
    assert late.code == 2
    assert "in the future" in late.err
    assert not (tmp_path / "late").exists()
    assert not (tmp_path / "early").exists()
    shown = invoke("restore", url, str(tmp_path / "s"), "--no-json")
    assert "as it was shipped at" in shown.out


def test_a_primary_that_was_replaced_is_fenced_and_health_says_so(tmp_path: Path) -> None:
    a, r, url = Fw(tmp_path / "a"), Fw(tmp_path / "r"), f"file://{tmp_path}/bucket/jobs"
    a("init")
    a("backup", "add", url)
    assert (tmp_path / "bucket" / "jobs").stat().st_mode & 0o777 == 0o700
    invoke("restore", url, str(r.wheel))
    assert "writes here" in r("backup", "add", url, code=14).err
    r("backup", "add", "--take-over", url)
    assert "writes here (epoch 2)" in a("replicate", "--once", code=3).err
    assert "has taken over" in a("run", "--once", code=14).err
    assert a("health", code=14).json[0]["kind"] == "fenced"
    assert f"backup add --take-over {url}" in a("backup", "list", code=3).err
    assert a("backup", "add", "--take-over", url).json[0]["changed"]
    assert a("backup", "list").json[0]["state"] == "current"
    a("run", "--once")
