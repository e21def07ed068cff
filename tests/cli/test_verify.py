"""Keeping a wheel: `verify`, `repair`, `dump`, `load`, `completion`."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
from pathlib import Path

import pytest

from filewheel import Keeper, Message, MessageId, Wheel
from filewheel.disk.directory import open_directory
from filewheel.laps.tidy import tidy
from filewheel.message import DEAD_US
from filewheel.tools.dump import last_line
from filewheel.tools.verify import verify
from tests.cli.support import Fw, Terminal, invoke


def fill(fw: Fw) -> None:
    """Enqueue messages of every kind, one of them dead."""
    rows = [
        {"in": "1h", "topic": "t", "payload": "text ä 漢\n", "headers": {"k": "v"}},
        {"in": "2h", "payload_b64": "/wA="},
        {"in": "3d", "payload": ""},
        {"in": 0, "payload": "dies"},
        {"in": "1h", "topic": "\u202e\x1b", "payload": "\u2028\x7f"},
    ]
    fw.enqueue("--batch", stdin="\n".join(map(json.dumps, rows)))
    keeper = Keeper(fw.wheel)
    for message in keeper.claim():
        keeper.bury(message, reason="because")
    keeper.close()


def harm(fw: Fw) -> None:
    """Turn one bit of a message that is dealt."""
    fw.enqueue("--in", "1h", "harmed")
    fw.enqueue("--in", "1h", "kept")
    assert tidy(open_directory(fw.wheel, write=True))
    for path in (fw.wheel / "laps").rglob("*.*"):
        data = bytearray(path.read_bytes())
        at = data.find(b"harmed")
        if at >= 0:
            data[at] ^= 1
            path.write_bytes(data)
            return
    raise AssertionError("not found")


# -- verify and repair ----------------------------------------------------------------------------------------


def test_verify_of_a_good_wheel_finds_nothing_and_says_so_on_stderr(fw: Fw) -> None:
    fill(fw)
    result = fw("verify")
    assert result.out == ""
    assert "no damage" in result.err


def test_a_note_is_no_damage(fw: Fw) -> None:
    (fw.wheel / "journal" / "notes.txt").write_text("mine")
    result = fw("verify")
    assert [(f["kind"], f["file"]) for f in result.json] == [("note", "journal/notes.txt")]
    assert "1 note" in result.err


@pytest.mark.damages
def test_verify_names_the_place_of_damage_and_exits_with_12(fw: Fw) -> None:
    harm(fw)
    result = fw("verify", "--json", code=12)
    (finding,) = result.json
    assert finding["kind"] == "damage"
    assert finding["end"] > finding["offset"] >= 0
    assert (fw.wheel / finding["file"]).exists()
    assert result.error["hint"] == "`filewheel repair --dry-run` lists the repairs"
    assert finding["file"] in fw("verify", "--no-json", code=12).out


@pytest.mark.damages
def test_repair_says_what_it_costs_asks_and_then_mends(fw: Fw) -> None:
    harm(fw)
    plan = fw("repair", "--dry-run", "--no-json", code=12)
    assert "damage" in plan.out
    assert "the wheel is damaged; this dry run changed nothing" in plan.err
    assert "cannot be read; they go to quarantine/, the rest is kept" in plan.err
    assert "--yes" in fw("repair", code=2).err
    assert verify(open_directory(fw.wheel, write=False)).damage

    terminal = Terminal("-C", fw.wheel, "repair")
    terminal.wait_for("Repair it? [y/N]")
    terminal.type("n\n")
    assert terminal.finish().code == 1
    assert verify(open_directory(fw.wheel, write=False)).damage

    terminal = Terminal("-C", fw.wheel, "repair")
    terminal.wait_for("Repair it? [y/N]")
    terminal.type("y\n")
    result = terminal.finish()
    assert result.code == 0
    assert "verified: no damage" in result.out
    assert "Messages in what was put aside do not fire any more" in result.out
    assert not verify(open_directory(fw.wheel, write=False)).damage
    assert fw("stats").json[0]["quarantined"] == 1
    assert [m["payload"] for m in fw.pending()] in (["kept"], [])


@pytest.mark.damages
def test_repair_with_json_reports_one_object(fw: Fw) -> None:
    harm(fw)
    (report,) = fw("repair", "--yes", "--json").json
    assert report["found"][0]["kind"] == "damage"
    assert report["done"]
    assert report["bytes_aside"] > 0
    assert fw("repair", "--yes", "--json").json == [
        {"found": [], "done": [], "bytes_kept": 0, "bytes_aside": 0, "bytes_lost": 0}
    ]


@pytest.mark.damages
def test_repair_says_that_it_gives_up_a_missing_file_and_puts_nothing_aside(fw: Fw) -> None:
    fw.enqueue("--in", "1h", "lost")
    fw.deal()
    (lap,) = fw.wheel.glob("laps/*.lap")
    size = lap.stat().st_size
    lap.unlink()
    plan = fw("repair", "--dry-run", code=12).err
    assert "1 file is missing, and a repair accepts that loss" in plan
    assert "Try: restore what is missing first" in plan
    assert "quarantine" not in plan
    done = fw("repair", "--yes", "--json")
    (report,) = done.json
    assert report["done"] == [f"laps/{lap.name}: the file is missing, with {size} bytes; it is not named any more"]
    assert (report["bytes_kept"], report["bytes_aside"], report["bytes_lost"]) == (0, 0, size)
    assert f"{size} B given up with files that are missing" in done.err
    fw("verify")


@pytest.mark.damages
def test_repair_beside_a_keeper_exits_with_11(fw: Fw) -> None:
    harm(fw)
    keeper = Keeper(fw.wheel)
    try:
        assert "keeper" in fw("repair", "--yes", code=11).err
        assert "keeper" in fw("repair", code=11).err  # it does not ask first
    finally:
        keeper.close()


# -- dump and load --------------------------------------------------------------------------------------------


def test_dump_load_and_dump_again_give_the_same_bytes(fw: Fw, tmp_path: Path) -> None:
    fill(fw)
    dumped = fw("dump").raw
    other = Fw(tmp_path / "other")
    other("init")
    assert "loaded 5 messages" in other("load", "-", stdin=dumped).err
    assert other("dump").raw == dumped
    *lines, last = [json.loads(line) for line in dumped.splitlines()]
    assert last == {"dumped": 5}
    assert [line["id"] for line in lines] == sorted(line["id"] for line in lines)
    assert [line.get("dead", False) for line in lines] == [False] * 4 + [True]
    assert dumped.decode().replace("\n", "").isprintable()
    assert other.dead()[0]["headers"]["filewheel.reason"] == "because"


def test_dump_to_a_file_appears_whole(fw: Fw, tmp_path: Path) -> None:
    fill(fw)
    target = tmp_path / "dump.jsonl"
    result = fw("dump", "-o", target)
    assert (result.out, result.err) == ("", "dumped 5 messages\n")
    assert target.read_bytes() == fw("dump").raw
    assert [p.name for p in tmp_path.iterdir() if "dump" in p.name] == ["dump.jsonl"]
    assert target.stat().st_mode & 0o777 == 0o600


def test_a_dump_into_a_pipe_or_a_link_leaves_it_in_its_place(fw: Fw, tmp_path: Path) -> None:
    fill(fw)
    pipe, link, behind = tmp_path / "pipe", tmp_path / "link.jsonl", tmp_path / "disk" / "dump.jsonl"
    os.mkfifo(pipe)
    behind.parent.mkdir()
    link.symlink_to(behind)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        fw("dump", "-o", pipe)
        assert os.read(reader, 1 << 20) == fw("dump").raw
    finally:
        os.close(reader)
    assert pipe.is_fifo()
    for _ in range(2):
        fw("dump", "-o", link)
        assert link.is_symlink()
        assert behind.read_bytes() == fw("dump").raw
    fw("dump", "-o", os.devnull)
    assert Path(os.devnull).is_char_device()
    assert fw.process("dump", "-o", "/dev/stdout").out == fw("dump").out


def test_a_dump_that_cannot_be_written_names_the_file_that_was_asked_for(fw: Fw, tmp_path: Path) -> None:
    target = tmp_path / "missing" / "dump.jsonl"
    assert fw("dump", "-o", target, code=1).err == f"Error: {target}: no such file or directory\n"


def test_a_load_that_is_refused_names_the_file_and_the_line(fw: Fw, tmp_path: Path) -> None:
    source = tmp_path / "bad.jsonl"
    source.write_text("garbage\n")
    said = fw("load", source, code=2).err
    assert said.startswith(f"Error: {source}: line 1: not JSON")
    assert "Try: correct that line" in said


def test_loading_twice_changes_nothing(fw: Fw, tmp_path: Path) -> None:
    fill(fw)
    dumped = fw("dump").raw
    assert "loaded 0 messages; 5 had been here already" in fw("load", stdin=dumped).err
    assert fw("dump").raw == dumped


def test_load_with_new_ids_adds_them_anew(fw: Fw) -> None:
    fill(fw)
    dumped = fw("dump").raw
    fw("load", "--new-ids", stdin=dumped)
    assert "added 5 messages as new" in fw("load", "--new-ids", stdin=dumped).err
    (stats,) = fw("stats").json
    assert (stats["pending"], stats["dead"]) == (12, 3)
    due = [m["due_us"] for m in fw.pending()]
    assert sorted(set(due)) == sorted({json.loads(line)["due_us"] for line in dumped.splitlines()[:-2]})
    assert {m["headers"]["filewheel.reason"] for m in fw.dead()} == {"because"}
    assert len({m["id"] for m in fw.pending() + fw.dead()}) == 15


def test_new_ids_take_the_time_from_due_us_so_that_a_dump_can_be_moved_in_time(fw: Fw) -> None:
    fill(fw)
    line = json.loads(fw("dump").lines[0])
    line["due_us"] += 1
    dumped = f"{json.dumps(line)}\n{last_line(1)}"
    assert "due_us" in fw("load", stdin=dumped, code=2).err
    fw("load", "--new-ids", stdin=dumped)
    assert line["due_us"] in [m["due_us"] for m in fw.pending()]


def test_what_was_cancelled_here_does_not_come_back_and_that_is_told(fw: Fw) -> None:
    gone, kept = fw.enqueue("--in", "1h", "--lines", stdin="a\nb\n")
    dumped = fw("dump").raw
    fw("cancel", gone)
    result = fw("load", "--json", stdin=dumped, code=3)
    assert f"{gone} did not come back" in result.err
    assert "loaded 0 messages; 1 had been here already" in result.err
    assert kept not in result.err
    assert result.error["error"] == "partly"
    assert "a dump of their lines alone" in result.error["hint"]


def _line(**changes: object) -> str:
    id_ = MessageId.make(1_800_000_000_000_000, 1, 1)
    fields = {"id": str(id_), "due_us": id_.due_us, "topic": "", "payload": "x", "headers": {}, "attempt": 0}
    return json.dumps({k: v for k, v in {**fields, **changes}.items() if v is not None})


_DEAD = str(MessageId.make(DEAD_US + 1_800_000_000_000_000, 1, 1))
BAD_LINES = [
    "nonsense",
    "[1]",
    _line(id=None),
    _line(id="x"),
    _line(payload=None),
    _line(payload=5),
    _line(topic="t" * 300),
    _line(headers={"a": 1}),
    _line(attempt=-1),
    _line(due_us="soon"),
    _line(payload="x" * 1_048_577),
    _line(id=_DEAD, due_us=None),
    _line(id=_DEAD, due_us=None, root=_DEAD),
    _line(id="7" + "Z" * 25, due_us=None, root=_DEAD),
    "[" * 50_000,
]


@pytest.mark.parametrize("line", [*BAD_LINES, _line(due_us=1)], ids=lambda line: line[:60])
def test_a_bad_line_is_named_and_nothing_is_added(fw: Fw, line: str) -> None:
    result = fw("load", stdin=f"{_line()}\n{line}\n", code=2)
    assert "line 2: " in result.err
    assert fw.pending() == []


@pytest.mark.parametrize("line", [*BAD_LINES, _line(due_us=-1)], ids=lambda line: line[:60])
def test_a_bad_line_is_named_with_new_ids_too(fw: Fw, line: str) -> None:
    result = fw("load", "--new-ids", stdin=f"{_line()}\n{line}\n", code=2)
    assert "line 2: " in result.err
    assert fw.pending() == []


def test_a_dump_of_a_wheel_in_use_holds_each_message_once(fw: Fw) -> None:
    fill(fw)
    keeper = Keeper(fw.wheel)
    try:
        assert len(fw("dump").lines) == 6
    finally:
        keeper.close()


def test_load_without_a_file_reads_a_pipe_and_refuses_a_terminal(fw: Fw) -> None:
    fw("load", stdin=last_line(0))
    assert Terminal("-C", fw.wheel, "load").finish().code == 2


@pytest.mark.parametrize("new_ids", [[], ["--new-ids"]])
def test_a_dump_that_was_cut_off_anywhere_adds_nothing(fw: Fw, tmp_path: Path, new_ids: list[str]) -> None:
    fill(fw)
    lines = fw("dump").raw.splitlines(keepends=True)
    other = Fw(tmp_path / "other")
    other("init")
    for kept in [lines[:0], lines[:1], lines[:-1], [*lines[1:]], [*lines[:-1], lines[-1][:-3]], [*lines, lines[0]]]:
        error = other("load", *new_ids, stdin=b"".join(kept), code=2).err
        assert "nothing was added" in error
        assert other.pending() == []
    assert '{"dumped": 1}' in other("load", *new_ids, stdin=lines[0], code=2).err
    other("load", *new_ids, stdin=b"".join([*lines, *lines[:1], b'{"dumped": 1}']))  # two dumps
    assert len(other.pending()) == (5 if new_ids else 4)


def test_a_compressed_dump_is_refused_with_the_command_that_reads_it(fw: Fw, tmp_path: Path) -> None:
    source = tmp_path / "dump.jsonl.gz"
    source.write_bytes(gzip.compress(fw("dump").raw))
    assert "zcat" in fw("load", source, code=2).err


def test_a_key_that_is_held_here_is_named_with_the_way_out(fw: Fw, tmp_path: Path) -> None:
    fw("enqueue", "--in", "1h", "--key", "it's", "theirs")
    other = Fw(tmp_path / "other")
    other("init")
    other("enqueue", "--in", "1h", "--key", "it's", "ours")
    assert "cancel --key 'it'\"'\"'s'" in other("load", stdin=fw("dump").raw, code=5).err


def test_load_of_many_lines_is_in_order(fw: Fw, tmp_path: Path) -> None:
    fw.enqueue("--in", "1h", "--lines", stdin="".join(f"{i}\n" for i in range(15_000)))
    dumped = fw("dump").raw
    other = Fw(tmp_path / "other")
    other("init")
    source = tmp_path / "dump.jsonl"
    source.write_bytes(dumped)
    other("load", source)
    assert other("dump").raw == dumped
    with Wheel(other.wheel) as wheel:
        assert wheel.stats().pending == 15_000


@pytest.mark.damages
def test_a_dump_of_a_damaged_wheel_has_the_rest_and_exits_with_12(fw: Fw) -> None:
    harm(fw)
    result = fw("dump", "--json", code=12)
    assert "harmed" not in result.out
    assert result.error["error"] == "damaged"


def test_dead_letters_are_cancelled_only_when_asked_for(fw: Fw) -> None:
    fill(fw)
    fw("cancel", "--all", "--yes")
    assert (fw.pending(), len(fw.dead())) == ([], 1)
    fw("cancel", "--all", "--dead", "--yes")
    assert fw.dead() == []


def test_a_dead_letter_shows_when_and_why_it_died(fw: Fw) -> None:
    fill(fw)
    (dead,) = fw.dead()
    assert dead["died"] > dead["due"]
    assert fw("inspect", dead["id"]).json == [dead]
    assert "because" in fw("inspect", "list", "--dead", "--no-json").out
    assert "because" in fw("inspect", dead["id"], "--no-json").out
    assert "dead letters 1" in fw("inspect", "--no-json").out


def test_messages_that_the_library_added_are_dumped_exactly(fw: Fw) -> None:
    message = Message(MessageId.make(1_900_000_000_000_001, 99, 7), b"\x00", "t", {"a": "b"}, 3, 12, None)
    with Wheel(fw.wheel) as wheel:
        wheel.add([message])
    line, _ = fw("dump").json
    assert (line["id"], line["attempt"], line["enqueued_us"]) == (str(message.id), 3, 12)


# -- completion -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_a_script_for_the_command(shell: str) -> None:
    script = invoke("completion", shell).out
    assert "_FILEWHEEL_COMPLETE" in script
    assert "filewheel" in script


def test_the_bash_script_is_valid_bash() -> None:
    script = invoke("completion", "bash").out
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)


def test_verbs_and_options_are_completed_and_ids_are_not() -> None:
    def complete(words: str, position: int) -> list[str]:
        result = invoke(env={"_FILEWHEEL_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(position)})
        return [line.partition(",")[2] for line in result.lines if line]

    assert complete("filewheel en", 1) == ["enqueue"]
    assert "--until-empty" in complete("filewheel run --u", 2)
    assert {"list", "slot", "journal"} <= set(complete("filewheel inspect ", 2))
    assert complete("filewheel cancel 0", 2) == []
