"""The command line as a whole: help, global options, exit codes, what goes where."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from cli.failure import MEANING
from cli.main import VERBS
from filewheel import Keeper, Wheel
from filewheel.format.frame import FORMAT
from tests.cli.support import Fw, Terminal, environment, finish, invoke, on_terminal, start, stopped
from tests.support import REPO, eventually

# -- help -----------------------------------------------------------------------------------------------------


def test_help_lists_every_verb_and_every_exit_code() -> None:
    text = invoke("--help").out
    for verb in VERBS:
        assert f"\n  {verb} " in text
    for code in MEANING:
        assert f"\n    {code:>3}  " in text


@pytest.mark.parametrize("verb", VERBS)
def test_the_page_of_the_command_line_names_each_verb(verb: str) -> None:
    page = (REPO / "docs" / "cli.md").read_text(encoding="utf-8")
    assert re.search(rf"(`|`filewheel |^filewheel (-C \S+ )?){verb}\b", page, re.MULTILINE)


@pytest.mark.parametrize("verb", VERBS)
def test_the_help_of_a_verb_shows_examples_and_json(verb: str) -> None:
    text = invoke(verb, "--help").out
    assert "Examples:\n    $ filewheel" in text
    assert "--json" in text
    assert max(map(len, text.splitlines())) <= 110


def test_no_verb_shows_the_help_on_stderr_and_is_a_usage_error() -> None:
    result = invoke()
    assert (result.code, result.out) == (2, "")
    assert "Commands:" in result.err


def test_a_group_without_a_verb_shows_its_help_and_choices_stand_on_one_line() -> None:
    group, choice = invoke("backup"), invoke("completion")
    assert (group.code, group.out, choice.code) == (2, "", 2)
    assert group.err.startswith("Usage: filewheel backup")
    assert "bash, zsh, fish" in choice.err


@pytest.mark.parametrize("args", [["--version"], ["--json", "--version"]])
def test_version_is_printed(args: list[str]) -> None:
    assert invoke(*args).out.startswith("filewheel ")


def test_a_verb_does_not_load_the_others() -> None:
    code = (
        "import sys; from cli.main import cli\n"
        "try: cli.main(['-C', sys.argv[1], 'stats'])\n"
        "except SystemExit: pass\n"
        "print(sorted(m for m in sys.modules if m.startswith('cli.commands.')))"
    )
    out = subprocess.run(
        [sys.executable, "-c", code, "nowhere"], cwd=REPO, capture_output=True, text=True, check=True
    ).stdout
    assert out.strip() == "['cli.commands.stats']"


# -- the wheel that is meant ----------------------------------------------------------------------------------


def test_the_wheel_is_named_by_an_option_before_or_after_the_verb_or_by_the_environment(fw: Fw) -> None:
    fw.enqueue("--in", "1h", "x")
    assert invoke("-C", fw.wheel, "stats").json[0]["pending"] == 1
    assert invoke("stats", "-C", fw.wheel).json[0]["pending"] == 1
    assert invoke("stats", env={"FILEWHEEL": str(fw.wheel)}).json[0]["pending"] == 1
    assert invoke("-C", "nowhere", "stats", env={"FILEWHEEL": str(fw.wheel)}).code == 10


def test_without_a_name_it_is_the_directory_wheel_here(tmp_path: Path) -> None:
    assert finish(start("init", cwd=tmp_path)).code == 0
    assert (tmp_path / "wheel" / "wheel.json").exists()


# -- JSON and tables ------------------------------------------------------------------------------------------


def test_piped_data_is_json_lines_and_on_a_terminal_a_table(fw: Fw) -> None:
    fw.enqueue("--in", "1h", "--topic", "mail", "x")
    assert fw("inspect", "list").json[0]["topic"] == "mail"
    shown = on_terminal("-C", fw.wheel, "inspect", "list").out
    assert "ID " in shown
    assert "{" not in shown


@pytest.mark.parametrize(
    "args", [["stats"], ["inspect"], ["inspect", "list"], ["inspect", "journal"], ["verify"], ["repair"], ["dump"]]
)
def test_json_is_honoured_before_and_after_the_verb_and_the_last_one_wins(fw: Fw, args: list[str]) -> None:
    fw.enqueue("--in", "1h", "x")
    before, after = fw("--json", *args), fw("--no-json", *args, "--json")
    assert [sorted(line) for line in before.json] == [sorted(line) for line in after.json]
    shown = fw("--json", *args, "--no-json")
    if args not in (["verify"], ["repair"], ["dump"]):
        assert not shown.out.startswith("{")


def test_quiet_silences_notes_and_not_data(fw: Fw) -> None:
    loud = fw("enqueue", "--at", "2001-01-01T00:00Z", "x")
    quiet = fw("enqueue", "--at", "2001-01-01T00:00Z", "x", "-q")
    assert "waits for a keeper" in loud.err
    assert quiet.err == ""
    assert len(quiet.lines) == 1


# -- colour ---------------------------------------------------------------------------------------------------


def test_colour_is_for_terminals_and_no_color_turns_it_off(fw: Fw) -> None:
    fw.enqueue("--in", "1h", "x")
    args = ("-C", fw.wheel, "inspect", "list")
    assert "\x1b[1m" in on_terminal(*args).out
    assert "\x1b[" not in on_terminal(*args, env={"NO_COLOR": "1"}).out
    assert "\x1b[1m" in on_terminal("--color", "always", *args, env={"NO_COLOR": "1"}).out
    assert "\x1b[" not in on_terminal(*args, "--color", "never").out
    assert "\x1b[1m" in fw("--color", "always", "stats", "--no-json").out
    assert "\x1b[" not in fw("stats", "--no-json").out


# -- failures -------------------------------------------------------------------------------------------------


def test_with_json_the_last_line_of_stderr_tells_the_failure(fw: Fw, tmp_path: Path) -> None:
    missing = "0" * 26
    other = tmp_path / "other"
    cases = [
        (["stats", "--nonsense"], "usage", 2),
        (["enqueue", "x"], "usage", 2),
        (["enqueue", "--in", "soon", "x"], "usage", 2),
        (["cancel", missing], "not-found", 4),
        (["reschedule", missing, "--in", "1"], "not-found", 4),
        (["inspect", missing], "not-found", 4),
        (["init"], "exists", 1),
        (["-C", str(other), "stats"], "no-wheel", 10),
    ]
    for args, kind, code in cases:
        result = invoke("-C", fw.wheel, "--json", *args)
        assert result.code == code, args
        error = result.error
        assert (error["error"], error["code"]) == (kind, code)
        assert error["message"]
        assert set(error) == {"error", "code", "message", "hint"}


def test_without_json_a_failure_is_one_line_and_what_to_try() -> None:
    result = invoke("-C", "nowhere", "stats")
    first, second = result.err.splitlines()
    assert first == f"Error: {Path.cwd() / 'nowhere'}: no such directory"
    assert second.startswith("Try: check the path, and that its disk is mounted; ")
    assert second.endswith(f"`filewheel -C {Path.cwd() / 'nowhere'} init`")
    assert result.out == ""


def test_where_nobody_named_a_wheel_the_hint_is_to_name_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for verb in ("inspect", "stats", "health", "run"):
        hint = invoke(verb).err.splitlines()[-1]
        assert hint == "Try: name the wheel with -C DIR or FILEWHEEL=DIR, or make one: `filewheel init`", verb


def test_the_list_of_commands_has_a_whole_sentence_for_each() -> None:
    lines = invoke("--help").out.split("Commands:")[1].split("Examples:")[0].splitlines()
    listed = [line for line in lines if line.strip()]
    assert len(listed) == len(VERBS)
    assert all(line.endswith(".") and not line.endswith("..") for line in listed), listed


def test_a_wheel_that_is_locked_exits_with_11(fw: Fw) -> None:
    keeper = Keeper(fw.wheel)
    try:
        result = fw("run", "--no-wait", "--json", code=11)
    finally:
        keeper.close()
    assert result.error["error"] == "locked"
    assert str(os.getpid()) in result.error["message"]


@pytest.mark.damages
def test_a_wheel_of_a_newer_format_exits_with_13_and_a_damaged_one_with_12(fw: Fw) -> None:
    import zlib

    settings = json.loads((fw.wheel / "wheel.json").read_text())
    settings.pop("crc32")
    settings["format"] = FORMAT + 1
    body = json.dumps(settings, indent=2)
    newer = f'{body[:-2]},\n  "crc32": {zlib.crc32(body.encode())}\n}}\n'
    (fw.wheel / "wheel.json").write_text(newer)
    assert fw("stats", "--json", code=13).error["error"] == "newer-format"
    (fw.wheel / "wheel.json").write_text("{")
    (fw.wheel / "wheel.json.copy").write_text("{")
    assert fw("stats", "--json", code=12).error["error"] == "damaged"


@pytest.mark.parametrize(
    "args",
    [["load", "/nonexistent/x.jsonl"], ["load", "/"], ["dump", "-o", "/nonexistent/x"], ["-C", "/proc/1/mem", "stats"]],
)
def test_an_error_of_the_system_is_one_line_without_a_traceback(fw: Fw, args: list[str]) -> None:
    result = fw.process(*args, code=10 if "stats" in args else 1)
    assert "Traceback" not in result.err
    assert result.err.startswith("Error: ")


def test_a_wheel_may_not_be_a_stranger_to_its_owner(fw: Fw) -> None:
    os.chmod(fw.wheel, 0o777)
    try:
        result = fw("enqueue", "--in", "1", "x", "--json", code=1)
    finally:
        os.chmod(fw.wheel, 0o700)
    assert result.error["error"] == "unsafe"
    assert "chmod" in result.error["hint"]


def test_a_damaged_settings_file_is_told_and_the_copy_used(fw: Fw) -> None:
    good = (fw.wheel / "wheel.json").read_bytes()
    (fw.wheel / "wheel.json").write_bytes(b"{")
    result = fw("stats", code=12)
    (fw.wheel / "wheel.json").write_bytes(good)
    assert result.json[0]["pending"] == 0
    assert "repair" in result.err


# -- pipes and interrupts -------------------------------------------------------------------------------------


@pytest.mark.parametrize("args", [["inspect", "list"], ["dump"], ["inspect", "list", "--ids"]])
def test_a_reader_that_goes_away_ends_it_quietly(fw: Fw, args: list[str]) -> None:
    fw.enqueue("--in", "1h", "--lines", stdin="x" * 50 + "\n" + "y\n" * 20_000)
    process = fw.start(*args)
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.close()
    process.stdout = None
    _, err = process.communicate(timeout=120)
    assert process.returncode == 1
    assert "Error" not in err
    assert "Traceback" not in err
    assert "Broken" not in err


@pytest.mark.parametrize("args", [["stats"], ["dump"], ["inspect"], ["run", "--once"]])
def test_a_full_disk_under_stdout_is_an_error_and_loses_nothing(fw: Fw, args: list[str]) -> None:
    fw.enqueue("--in", "0", "x")
    with open("/dev/full", "w") as full:
        result = finish(fw.start(*args, stdout=full))
    assert result.code == 1
    assert result.err.splitlines()[-1] == "Error: no space left on device"
    assert len(fw.pending()) == 1


@pytest.mark.parametrize(
    ("args", "code"),
    [
        (["enqueue", "--at", "2020-01-01", "x"], 0),
        (["enqueue", "--in", "nonsense", "x"], 2),
        (["cancel", "nope"], 2),
        (["cancel", "--key", "nope"], 4),
        (["run", "--once", "--retries", "0", "--", "false"], 3),
    ],
)
@pytest.mark.parametrize("kind", ["full", "broken"])
def test_a_stderr_that_takes_nothing_changes_no_exit_code(fw: Fw, args: list[str], code: int, kind: str) -> None:
    fw.enqueue("--in", "0", "y")
    assert finish(fw.start(*args)).err
    fw.enqueue("--in", "0", "y")
    if kind == "full":
        with open("/dev/full", "w") as sink:
            result = finish(fw.start(*args, stderr=sink))
    else:
        reads, writes = os.pipe()
        os.close(reads)
        result = finish(fw.start(*args, stderr=writes))
        os.close(writes)
    assert result.code == code


def test_streams_that_are_closed_are_taken_for_empty_ones(fw: Fw) -> None:
    fw.enqueue("--in", "0", "x")
    command = f'"$0" -m cli -C "{fw.wheel}" run --once -- sh -c "cat >&2; echo out" <&- >&- 2>&-'
    assert finish(start(command=["sh", "-c", command, sys.executable])).code == 0
    assert fw.pending() == []
    assert fw("verify").out == ""


def test_an_interrupt_exits_with_130(fw: Fw) -> None:
    terminal = Terminal("-C", fw.wheel, "enqueue", "--in", "1h", "-")
    with stopped(terminal.process):
        eventually(lambda: _reads_stdin(terminal.process.pid))
        terminal.process.send_signal(signal.SIGINT)
        result = terminal.finish()
    assert result.code == 130
    assert "interrupted" in result.out
    assert "Traceback" not in result.out


def _reads_stdin(pid: int) -> bool:
    try:
        return "wait_woken" in Path(f"/proc/{pid}/wchan").read_text() or _sleeps_long(pid)
    except OSError:
        return True


def _sleeps_long(pid: int) -> bool:
    stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return stat[0] == "S" and int(stat[11]) + int(stat[12]) >= 8  # it has used 80 ms, and sleeps


def test_it_works_with_an_ascii_locale(fw: Fw) -> None:
    fw.enqueue("--in", "10", "--topic", "grüße", "ä漢")
    env = environment(PYTHONIOENCODING="ascii", LC_ALL="C", PYTHONUTF8="0")
    for args in (["inspect", "list"], ["inspect", "--no-json"], ["inspect", "list", "--no-json"], ["dump"]):
        command = [sys.executable, "-m", "cli", "-C", str(fw.wheel), *args]
        done = subprocess.run(command, cwd=REPO, env=env, capture_output=True, check=True)
        if "--no-json" not in args:
            assert json.loads(done.stdout.splitlines()[0])["topic"] == "grüße"
    assert b"\xe2" not in done.stdout or args == ["dump"]


def test_the_same_wheel_is_opened_by_the_library(fw: Fw) -> None:
    (id_,) = fw.enqueue("--in", "1h", "x")
    with Wheel(fw.wheel) as wheel:
        found = wheel.get(id_)
    assert found is not None
    assert found.payload == b"x"


def test_an_empty_name_of_a_wheel_is_refused_and_not_taken_for_the_default(fw: Fw) -> None:
    result = invoke("-C", "", "stats")
    assert result.code == 2
    assert "is empty" in result.err


# -- hints ----------------------------------------------------------------------------------------------------


def test_a_hint_names_options_and_no_python_arguments(fw: Fw) -> None:
    fw("enqueue", "--in", "1h", "--key", "k", "one")
    for result in (
        fw("enqueue", "--in", "1h", "--key", "k", "two", code=5),
        fw("enqueue", "--in", "1h", "-", stdin="x" * (1 << 20) + "x", code=2),
    ):
        hint = result.err.splitlines()[-1]
        assert hint.startswith("Try: ")
        assert "_" not in hint
        assert "--" in hint


def test_an_argument_that_is_a_directory_gets_the_hint_how_a_wheel_is_named(fw: Fw, tmp_path: Path) -> None:
    assert f"Try: `filewheel -C {fw.wheel} verify`" in invoke("verify", fw.wheel).err
    assert "Try: `filewheel verify --help`" in invoke("verify", tmp_path / "nothing").err


def test_a_duration_in_two_words_is_pointed_out(fw: Fw) -> None:
    assert "one word" in fw("enqueue", "--in", "5", "minutes", "hi", code=2).err
    for unit in ("minutes", "m", "ms"):
        alone = fw("enqueue", "--in", "5", unit, code=2)
        assert f"one word, as in --in 5m; for the payload '{unit}'" in alone.err
    assert fw.pending() == []
    for delay, body in (("5m", "m"), ("5s", "minutes"), ("5", "soon")):
        assert fw("enqueue", "--in", delay, body).err == ""


def test_an_unknown_shell_is_named_beside_the_known_ones() -> None:
    said = invoke("completion", "foo").err
    assert "Invalid value for 'SHELL': 'foo' is not one of 'bash', 'zsh', 'fish'" in said


def test_a_sync_that_is_none_names_the_words_and_the_unit(fw: Fw) -> None:
    assert "always, never or a duration such as 250ms" in fw("enqueue", "--in", "5", "--sync", "some", "x", code=2).err
