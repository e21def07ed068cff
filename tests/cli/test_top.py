"""`top`: what it shows, what its keys do after which question, and how it leaves the terminal."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import struct
import termios
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cli.show.text import width
from filewheel import Keeper, Scheduler, Wheel
from tests.cli.support import Fw, Terminal, invoke, on_terminal
from tests.live.screen_support import Seen
from tests.support_set import make_set


class Top:
    """A `top` that runs on a terminal."""

    def __init__(self, path: Path, *options: str, columns: int = 80, rows: int = 24, **env: str) -> None:
        self.rows = rows
        self.terminal = Terminal(
            "-C", path, "top", "--interval", "100ms", *options, columns=columns, rows=rows, env=env
        )

    @property
    def seen(self) -> Seen:
        """What is on the screen."""
        return Seen(self.terminal.text, self.rows)

    def wait(self, what: str | Callable[[Seen], object]) -> Seen:
        """Wait until a text is on the screen, or a condition holds."""
        holds: Callable[[Seen], object] = (lambda seen: what in seen.text) if isinstance(what, str) else what
        for _ in range(1200):
            if holds(self.seen):
                return self.seen
            assert self.terminal._read(0.1), self.seen.text
        raise AssertionError(self.seen.text)

    def press(self, keys: str) -> None:
        """Press keys."""
        self.terminal.type(keys)

    def quit(self) -> Seen:
        """End it, and return the screen that it left."""
        self.press("q")
        ended = self.terminal.finish()
        assert ended.code == 0, ended
        return self.seen


@pytest.fixture
def tops() -> Iterator[Callable[..., Top]]:
    started: list[Top] = []

    def start(*args: object, **options: object) -> Top:
        started.append(Top(*args, **options))  # type: ignore[arg-type]
        return started[-1]

    yield start
    for one in started:
        if one.terminal.process.poll() is None:
            one.terminal.process.kill()
            one.terminal.process.wait()


def test_it_shows_what_is_pending_and_follows_it(wheel_dir: Path, tops: Callable[..., Top]) -> None:
    with Wheel(wheel_dir) as wheel:
        wheel.enqueue_many([b"hello ann"] * 5, delay=[30, 31, 32, 1800, 50_000], topic="mail")
        top = tops(wheel_dir)
        seen = top.wait("5 pending")
        assert "NO KEEPER" in seen.text
        top.wait("next minute  3 messages")
        top.wait("next hour    4 messages")
        seen = top.wait("next day     5 messages")
        assert "hello ann" in seen.text
        wheel.enqueue_many([b"more"] * 3, delay=40)
        top.wait("8 pending")
        with Keeper(wheel_dir):
            top.wait(f"keeper {os.getpid()}")
        assert all(width(line) <= 80 for line in top.seen.lines)
        left = top.quit()
        assert not left.is_alternate
        assert left.has_cursor


def test_the_terminal_is_as_before_after_q_a_signal_and_ctrl_c(wheel_dir: Path, tops: Callable[..., Top]) -> None:
    ends = [None, signal.SIGINT, signal.SIGTERM, signal.SIGHUP]
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:  # under nohup, here and in what is started here
        ends.remove(signal.SIGHUP)
    for number in ends:
        top = tops(wheel_dir)
        fd = top.terminal._fd
        before = termios.tcgetattr(fd)
        top.wait("nothing is pending")
        assert termios.tcgetattr(fd) != before
        if number is None:
            top.press("q")
        else:
            top.terminal.process.send_signal(number)
        while top.terminal.process.poll() is None:
            top.terminal._read(0.1)
        assert termios.tcgetattr(fd) == before
        ended = top.terminal.finish()
        assert ended.code == 0
        assert "Traceback" not in ended.out
        assert not Seen(ended.out).is_alternate


def test_an_act_asks_first_and_only_a_y_means_yes(wheel_dir: Path, tops: Callable[..., Top]) -> None:
    with Wheel(wheel_dir) as wheel:
        first = wheel.enqueue(b"one", delay=600, topic="mail")
        second = wheel.enqueue(b"two", delay=700, topic="report")
        top = tops(wheel_dir)
        top.wait("2 pending")
        top.wait(lambda seen: "> " in seen.text)
        for no in ("n", "q", "\r", "\x1b", " "):
            top.press("c")
            top.wait("Cancel 1 message? mail  y/n")
            top.press(no)
            top.wait("nothing was done")
            assert wheel.get(first) is not None
        top.press("r")
        top.wait("revive is for dead letters")
        top.press("\x1b[B")
        top.wait(lambda seen: any(line.startswith("> ") and "two" in line for line in seen.lines))
        top.press("c")
        top.wait("Cancel 1 message? report  y/n")
        top.press("y")
        top.wait("1 cancelled")
        assert wheel.get(second) is None
        assert wheel.get(first) is not None
        top.wait("1 pending")
        top.press("\x1b[A")
        top.press("f")
        top.wait("Fire 1 message now? mail  y/n")
        top.press("y")
        top.wait("1 rescheduled")
        top.wait("OVERDUE 1")
        top.quit()


def test_a_dead_letter_is_shown_whole_revived_and_deleted(wheel_dir: Path, tops: Callable[..., Top]) -> None:
    with Wheel(wheel_dir) as wheel, Keeper(wheel_dir, background=False) as keeper:
        wheel.enqueue(b"body of the first", topic="webhook")
        wheel.enqueue(b"body of the second", topic="webhook")
        for message in keeper.claim():
            keeper.bury(message, reason="it answered 500")
        top = tops(wheel_dir)
        top.wait("2 dead letters")
        top.press("3")
        top.wait("[dead]")
        top.wait("it answered 500")
        top.press("\r")
        seen = top.wait("reason    it answered 500")
        assert "body of the" in seen.text
        top.press("x")
        top.wait("[dead]")
        assert wheel.stats().dead == 2, "the key went back, and did nothing else"
        top.press("x")
        top.wait("Delete 1 dead letter for good?")
        top.press("y")
        top.wait("1 deleted")
        top.wait("1 dead letter")
        top.wait(lambda seen: sum("it answered 500" in line for line in seen.lines) == 1)
        top.press("r")
        top.wait("Revive 1 dead letter, to fire now?")
        top.press("y")
        top.wait("1 revived")
        top.wait("no dead letters")
        assert (wheel.stats().pending, wheel.stats().dead) == (1, 0)
        top.quit()


def test_lists_of_what_runs_has_ended_and_recurs(wheel_dir: Path, tops: Callable[..., Top]) -> None:
    scheduler = Scheduler(wheel_dir)
    scheduler.schedule("nightly", "0 3 * * *", "report")
    scheduler.stop()
    with Wheel(wheel_dir) as wheel, Keeper(wheel_dir) as keeper:
        wheel.enqueue(b"x", topic="mail")
        top = tops(wheel_dir)
        while not (batch := keeper.claim()):
            pass
        top.press("\t")
        top.wait("[running]")
        top.wait(lambda seen: any("runs " in line and "mail" in line and "try 1" in line for line in seen.lines))
        top.press("k")
        top.wait("Kill 1 message that runs? It is dropped. mail  y/n")
        top.press("y")
        top.wait("it runs in a program of its own")
        keeper.ack(batch)
        top.press("\t\t")
        top.wait("[ended]")
        top.wait(lambda seen: any("acked" in line and "mail" in line for line in seen.lines))
        top.press("\t")
        top.wait("[schedules]")
        top.wait(lambda seen: any("nightly" in line and "0 3 * * *" in line for line in seen.lines))
        top.press("c")
        top.wait("This ends the schedule nightly.")
        top.press("n\x1b[Z")
        top.wait("[ended]")
        top.quit()


def test_a_search_by_topic_and_pages(wheel_dir: Path, tops: Callable[..., Top]) -> None:
    with Wheel(wheel_dir) as wheel:
        wheel.enqueue_many(
            [b"body %02d" % n for n in range(90)], delay=[600 + n for n in range(90)], topic=["a", "b", "b"] * 30
        )
        top = tops(wheel_dir)
        top.wait("body 00")
        top.press("/b\x7fa\r")
        top.wait("topic a")
        top.wait(lambda seen: "body 03" in seen.text and "body 01" not in seen.text)
        top.press("\x1b[6~")
        top.wait("(not the first page)")
        top.wait("body 72")
        top.press("\x1b[5~")
        top.wait("body 00")
        top.press("/\x7f\x1b")
        top.wait("topic a")
        top.press("/\x7f\r")
        top.wait("body 01")
        top.press("/nothing*\r")
        top.wait("nothing is pending that fits")
        top.quit()


HOSTILE = ["esc\x1b[2Jape\x1b]0;title\x07", "cod\u202egnp.exe", "nul\x00\x9b31m", "日本語" * 25, "line\nbreak\rover"]


@pytest.mark.parametrize("env", [{}, {"NO_COLOR": "1"}, {"PYTHONIOENCODING": "ascii"}, {"TERM": "vt100"}])
def test_messages_cannot_control_the_terminal(wheel_dir: Path, tops: Callable[..., Top], env: dict[str, str]) -> None:
    with Wheel(wheel_dir) as wheel, Keeper(wheel_dir, background=False) as keeper:
        for text in HOSTILE:
            wheel.enqueue(text.encode(), topic=text, key=text)
        for message in keeper.claim():
            keeper.bury(message, reason=message.topic)
        ids = [wheel.enqueue(text.encode(), delay=60 + n, topic=text, key=text) for n, text in enumerate(HOSTILE)]
        top = tops(wheel_dir, **env)
        top.wait("esc")
        for keys in ("\r", "x", "3", "\r", "x"):
            top.press(keys)
            top.wait(lambda seen: seen.is_alternate)
        seen = top.wait("[dead]")
        assert seen.is_alternate, "an escape of a message ended the picture"
        assert "\x1b[2Jape" not in top.terminal.text
        assert not set(top.terminal.text) & set("\u202e\x9b\x07\x00")
        assert all(width(line) <= 80 for line in seen.lines)
        if env.get("NO_COLOR"):
            assert not {style for style in seen.styles if style.startswith(("3", "4", "9"))}
        if "PYTHONIOENCODING" in env:
            assert top.terminal.text.isascii()
        top.press("n")  # the last x may have asked
        top.quit()
        assert len(ids) == 5


def test_a_question_about_a_hostile_topic_cannot_control_the_terminal(
    wheel_dir: Path, tops: Callable[..., Top]
) -> None:
    with Wheel(wheel_dir) as wheel:
        wheel.enqueue(b"x", delay=600, topic=HOSTILE[0])
        top = tops(wheel_dir)
        top.wait(lambda seen: any(line.startswith("> ") for line in seen.lines))
        top.press("c")
        seen = top.wait("Cancel 1 message?")
        assert r"esc\x1b[2Jape" in seen.lines[-1]
        assert "\x1b[2Jape" not in top.terminal.text
        top.press("n")
        top.quit()


def test_a_topic_a_schedule_and_the_wheel_are_paused_and_resumed_after_a_question(
    wheel_dir: Path, tops: Callable[..., Top]
) -> None:
    scheduler = Scheduler(wheel_dir)
    scheduler.schedule("nightly", 3600, "report")
    scheduler.stop()
    with Wheel(wheel_dir) as wheel:
        wheel.enqueue(b"x", delay=-60, topic="mail")
        top = tops(wheel_dir)
        top.wait(lambda seen: any(line.startswith("> ") and "mail" in line for line in seen.lines))
        for no in ("n", "q", "\r"):
            top.press("p")
            top.wait("Pause topic mail? Nothing of it begins")
            top.press(no)
            top.wait("nothing was done")
            assert not wheel.paused()
        top.wait("OVERDUE 1")
        top.press("py")
        top.wait("topic mail is paused")
        top.wait("PAUSED topic mail (1 due)")
        top.wait(lambda seen: any("paused" in line and "mail" in line for line in seen.lines if line.startswith("> ")))
        assert "OVERDUE" not in top.seen.text
        top.press("Py")
        top.wait("PAUSED topic mail, the wheel")
        top.press("5")
        top.wait(lambda seen: any(line.startswith("> ") and "nightly" in line for line in seen.lines))
        top.press("P")
        top.wait("Resume the wheel?")
        top.press("y")
        top.wait("the wheel is resumed")
        top.press("p")
        top.wait("Pause schedule nightly?")
        top.press("y")
        top.wait("PAUSED topic mail, schedule nightly")
        top.wait(
            lambda seen: any(line.startswith("> ") and "paused" in line and "nightly" in line for line in seen.lines)
        )
        assert [str(pause) for pause in wheel.paused()] == ["topic mail", "schedule nightly"]
        top.press("6")
        top.wait(lambda seen: any(line.startswith("> topic mail, since") for line in seen.lines))
        top.press("c")
        top.wait("nothing is chosen")
        top.press("p")
        top.wait("Resume topic mail? What is due fires at once")
        top.press("y")
        top.wait("topic mail is resumed")
        top.wait(lambda seen: any(line.startswith("> schedule nightly") for line in seen.lines))
        assert [str(pause) for pause in wheel.paused()] == ["schedule nightly"]
        assert all(width(line) <= 80 for line in top.seen.lines)
        top.quit()
        wheel.resume(everything=True)


@pytest.mark.parametrize(("columns", "rows"), [(80, 24), (40, 10), (200, 60), (64, 12), (20, 4)])
def test_the_picture_fits_each_terminal(wheel_dir: Path, tops: Callable[..., Top], columns: int, rows: int) -> None:
    with Wheel(wheel_dir) as wheel:
        wheel.enqueue_many([b"w" * 300] * 90, delay=[20 + n for n in range(90)], topic="a.topic.of.some.length")
        top = tops(wheel_dir, columns=columns, rows=rows)
        seen = top.wait(lambda seen: seen.lines[-1] and any(line.startswith("> ") for line in seen.lines))
        if rows >= 24:
            seen = top.wait(lambda seen: "next day" in seen.text and sum("www" in line for line in seen.lines) >= 5)
        assert all(width(line) <= max(40, columns) for line in seen.lines)
        top.quit()


def test_the_picture_follows_the_size_of_the_window(wheel_dir: Path, tops: Callable[..., Top]) -> None:
    Fw(wheel_dir).enqueue("--in", "30s", "w" * 300)
    top = tops(wheel_dir, rows=24, columns=120)
    top.wait("w" * 40)
    fcntl.ioctl(top.terminal._fd, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 70, 0, 0))
    top.wait(lambda seen: all(width(line) <= 70 for line in seen.lines))
    top.quit()


def test_a_wheel_that_goes_and_comes_back_is_named_and_shown_again(wheel_dir: Path, tops: Callable[..., Top]) -> None:
    top = tops(wheel_dir)
    top.wait("0 pending")
    wheel_dir.rename(wheel_dir.with_name("away"))
    top.wait("no such directory")
    wheel_dir.with_name("away").rename(wheel_dir)
    top.wait("0 pending")
    top.quit()


def test_piped_it_is_one_object(wheel_dir: Path) -> None:
    fw = Fw(wheel_dir)
    fw.enqueue("--in", "30s", "--topic", "mail", "x")
    found = fw("top")
    (line,) = found.lines
    fields = json.loads(line)
    assert fields["stats"]["pending"] == 1
    assert sum(fields["turning"]["counts"]) == 1
    assert sum(fields["ahead"]["minute"]["counts"]) == 1
    assert fields["running"]["claimed"] == 0
    assert fields["set"] is None
    assert fw("top", "--once", "--json").json[0]["stats"]["pending"] == 1


def test_once_is_one_picture_that_ends(wheel_dir: Path) -> None:
    fw = Fw(wheel_dir)
    fw.enqueue("--in", "30s", "--topic", "mail", "hello")
    shown = on_terminal("-C", wheel_dir, "top", "--once", env={"NO_COLOR": "1"})
    for result in (fw("top", "--once", "--no-json"), shown):
        assert "1 pending" in result.out
        assert "next minute  1 message" in result.out
        assert "hello" in result.out
        assert "\x1b[?" not in result.out


def test_a_terminal_that_cannot_be_drawn_over_gets_one_picture(wheel_dir: Path) -> None:
    assert "0 pending" in on_terminal("-C", wheel_dir, "top", env={"TERM": "dumb"}).out
    found = on_terminal("-C", wheel_dir, "top", stdin=-3)  # /dev/null
    assert "0 pending" in found.out
    assert found.code == 0


def test_a_backup_and_its_primary_are_told_apart(tmp_path: Path) -> None:
    primary, backup = tmp_path / "a.wheel", tmp_path / "b.wheel"
    make_set(primary, backup)
    assert "this is a backup of" in invoke("-C", backup, "top", "--once", "--no-json").out
    assert "backups 0 of 1 well" in invoke("-C", primary, "top", "--once", "--no-json").out


@pytest.mark.damages
def test_a_damaged_wheel_is_shown_with_exit_code_12(wheel_dir: Path) -> None:
    fw = Fw(wheel_dir)
    fw.enqueue("--in", "1h", "x")
    fw.enqueue("--in", "40d", "y")
    fw.deal()
    sorted(wheel_dir.glob("laps/*.lap"))[0].unlink()
    assert "DAMAGED 1 place" in fw("top", "--once", "--no-json", code=12).out
    assert fw("top", code=12).json[0]["stats"]["damaged"] == 1


def test_a_missing_wheel_is_an_error(tmp_path: Path) -> None:
    found = invoke("-C", tmp_path / "none", "top")
    assert found.code == 10
    assert "no such directory" in found.err
