"""The page in a real browser: what it shows is what is pending, and what messages hold stays text.

Skipped where there is no Chromium: on Debian `apt install chromium`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from filewheel import Keeper, Scheduler, Wheel
from filewheel.message import US_PER_S
from tests.live.chromium import Chromium, executable
from tests.live.web_support import TOKEN, Client, page
from tests.support import eventually
from tests.support_set import make_set

if executable() is None:
    pytest.skip("no Chromium on this machine", allow_module_level=True)


@pytest.fixture(scope="module")
def browser() -> Iterator[Chromium]:
    with Chromium() as found:
        yield found


@pytest.fixture(autouse=True)
def is_clean(browser: Chromium) -> Iterator[None]:
    """Each test ends without an error in the console, and without a request to anybody else."""
    browser.call("Page.navigate", url="about:blank")  # the page of the test before looks for its server
    browser.run("1")
    browser.events.clear()
    yield
    complaints = [text for text in browser.complaints() if not text.startswith("Failed to load resource")]
    assert not complaints
    foreign = [url for url in browser.requests() if not url.startswith("http://127.0.0.1:")]
    assert not foreign


def address(client: Client, view: str = "") -> str:
    return f"http://127.0.0.1:{client.port}/{view and f'#/{view}'}"


def slots(browser: Chromium) -> dict[int, int]:
    """Return what the ring shows: second → count, for the seconds that have messages."""
    found = browser.run(
        "[...document.querySelectorAll('.wheel .slot')].map((s) => [Number(s.dataset.second), Number(s.dataset.count)])"
    )
    assert len(found) == 60
    return {second: count for second, count in found if count}


def test_the_ring_shows_each_message_of_the_next_minute_in_its_second(browser: Chromium, wheel_dir: Path) -> None:
    with Wheel(wheel_dir) as wheel, page(wheel_dir) as client:
        ids = wheel.enqueue_many([b"x"] * 40, delay=[20 + n % 35 for n in range(40)])
        wheel.enqueue(b"far", delay=3600)
        truth: dict[int, int] = {}
        for id_ in ids:
            truth[id_.due_us // US_PER_S] = truth.get(id_.due_us // US_PER_S, 0) + 1
        browser.open(address(client))
        browser.wait("document.querySelector('.wheel .hub')?.textContent === '41'")
        shown = slots(browser)
        assert shown == truth
        # A slot lies where its second is on a clock, and is as long as its count.
        lines = browser.run(
            "[...document.querySelectorAll('.wheel .slot')].filter((s) => s.dataset.count !== '0').map((s) => "
            "[Number(s.dataset.second), Number(s.dataset.count), s.x1.baseVal.value, s.y1.baseVal.value, "
            "s.x2.baseVal.value, s.y2.baseVal.value])"
        )
        longest = max(truth.values())
        for second, count, x1, y1, x2, y2 in lines:
            angle = browser.run(f"Math.atan2({x1} - 160, 160 - {y1})") % 6.283185307179586
            assert round(angle / 6.283185307179586 * 60) % 60 == second % 60
            assert ((x2 - x1) ** 2 + (y2 - y1) ** 2) ** 0.5 == pytest.approx(62 * count / longest, abs=0.6)
        hand = browser.run("document.querySelector('.wheel .hand').getAttribute('transform')")
        now = browser.run("document.querySelector('#state').textContent")
        assert int(float(hand.removeprefix("rotate(").split()[0]) / 6) % 60 == pytest.approx(int(now[-2:]), abs=2)
        label = browser.run("document.querySelector('.wheel').getAttribute('aria-label')")
        assert label == f"The next minute: 40 messages, at most {longest} in a second"


def test_the_page_follows_what_is_enqueued_and_cancelled_without_a_reload(browser: Chromium, wheel_dir: Path) -> None:
    with Wheel(wheel_dir) as wheel, page(wheel_dir) as client:
        browser.open(address(client))
        browser.wait("document.querySelector('.wheel .hub')?.textContent === '0'")
        ids = wheel.enqueue_many([b"x"] * 7, delay=500)
        browser.wait("document.querySelector('.wheel .hub').textContent === '7'")
        wheel.cancel_many(ids[:3])
        browser.wait("document.querySelector('[data-tile=Pending] dd').firstChild.textContent === '4'")
        assert "none running" in browser.text("[data-tile=Keeper]")
        with Keeper(wheel_dir):
            browser.wait("document.querySelector('[data-tile=Keeper]').innerText.includes('process')")


def test_the_bars_of_the_hour_hold_what_is_due_in_it(browser: Chromium, wheel_dir: Path) -> None:
    with Wheel(wheel_dir) as wheel, page(wheel_dir) as client:
        wheel.enqueue_many([b"x"] * 90, delay=[120 + 30 * n for n in range(90)])
        wheel.enqueue_many([b"x"] * 5, delay=86_400 * 3)
        browser.open(address(client))
        browser.wait("document.querySelector('[data-view=hour]')")
        counts = browser.run(
            "[...document.querySelectorAll('[data-view=hour] rect')].map((r) => Number(r.dataset.count))"
        )
        assert len(counts) == 61
        assert sum(counts) == 90
        assert "90 messages" in browser.text("[data-view=hour]")
        assert "95 messages" not in browser.text("[data-view=day]")
        rows = browser.text("#ahead .rows").split()
        assert rows[rows.index("days") + 1 :][:1] == ["0"]


HOSTILE = [
    "<script>window.pwned = 1</script>",
    '"><img src=x onerror="window.pwned = 1">',
    "'><svg onload=window.pwned=1>",
    "</pre></td></table><script>window.pwned = 1</script>",
    "javascript:window.pwned=1",
    "{{constructor.constructor('window.pwned=1')()}}",
    "cod\u202egnp.exe\u2066 \u200e",
    "nul\x00 bell\x07 esc\x1b[31m del\x7f c1\x9b",
    "line\u2028separator\nand\ttab",
    "日本語 😀 é",
    "&lt;b&gt; &amp; %3Cscript%3E",
]


def test_what_messages_hold_is_text_wherever_it_is_shown(browser: Chromium, wheel_dir: Path) -> None:
    with (
        Wheel(wheel_dir) as wheel,
        Keeper(wheel_dir, background=False) as keeper,
        page(wheel_dir, token=TOKEN) as client,
    ):
        for text in HOSTILE:
            wheel.enqueue(text.encode(), topic=text)
        for message in keeper.claim():
            keeper.bury(message, reason=message.topic)
        ids = [wheel.enqueue(text.encode(), delay=60 + n, topic=text, headers={text: text}, key=text)
               for n, text in enumerate(HOSTILE)]  # fmt: skip
        large = wheel.enqueue(("<script>window.pwned = 1</script>\u202e" * 2100).encode(), delay=50, topic="large")
        scheduler = Scheduler(wheel_dir)
        for text in HOSTILE:
            if "\x00" not in text:
                scheduler.schedule(text, 3600, text, [text])
        scheduler.stop()
        browser.open(address(client) + f"#token={TOKEN}")
        for view, least in (("messages", 10), ("dead", 10), ("schedules", 9), ("topics", 10)):
            browser.run(f"location.hash = '#/{view}'")
            browser.wait(f"document.querySelectorAll('#view-other .text').length >= {least}")
            assert "<script>window.pwned = 1</script>" in browser.text("#view-other")
            assert r"cod\u202egnp.exe" in browser.text("#view-other")
        for id_, text in zip(ids, HOSTILE, strict=True):
            browser.run(f"location.hash = '#/message/{id_}'")
            browser.wait(f"document.querySelector('#view-other .id')?.textContent === '{id_}'")
            shown = browser.run("[...document.querySelectorAll('#view-other .text')].map((e) => e.textContent)")
            escaped = browser.run(f"import('./static/dom.js').then((d) => d.safe({json.dumps(text)}))")
            assert shown.count(escaped) >= 4, "topic, key, the header's name and its value"
            assert not any(ord(c) < 32 or c in "\u202e\u2066\u200e\u2028\x7f\x9b" for c in escaped)
        browser.run(f"location.hash = '#/message/{large}'")
        browser.wait("document.querySelector('#view-other pre')?.textContent.length > 60000")
        assert "first 64.0 KiB shown" in browser.text("#view-other")
        browser.run("location.hash = '#/now'")
        browser.wait("document.querySelectorAll('#next tbody tr').length === 8")
        assert browser.run("window.pwned === undefined")
        assert (
            browser.run("document.querySelectorAll('main script, main img, main svg [onload], iframe, object').length")
            == 0
        )
        browser.run("window.pwned = undefined")


def test_no_script_that_a_page_would_be_given_runs(browser: Chromium, wheel_dir: Path) -> None:
    """The policy stands behind the escaping: markup that got in would run nothing, and could ask nobody."""
    with page(wheel_dir) as client:
        browser.open(address(client))
        refused = browser.run(
            "(() => { try { document.body.innerHTML = '<b>x</b>'; return 'set'; } catch (e) { return e.name; } })()"
        )
        assert refused == "TypeError", "trusted types"
        assert browser.run(
            "new Promise((done) => { const s = document.createElementNS('http://www.w3.org/2000/svg', 'image');"
            "document.addEventListener('securitypolicyviolation', (e) => done(e.effectiveDirective), { once: true });"
            "s.setAttribute('href', 'http://127.0.0.2:1/x.png'); const v = document.createElementNS("
            "'http://www.w3.org/2000/svg', 'svg'); v.append(s); document.body.append(v); })"
        ) == "img-src"  # fmt: skip
        assert browser.run("fetch('http://127.0.0.2:1/').then(() => 'sent', (e) => e.name)") == "TypeError"
        browser.events.clear()  # the complaints are what this test wants


def test_the_token_of_a_link_is_used_and_taken_out_of_the_address(browser: Chromium, wheel_dir: Path) -> None:
    with page(wheel_dir, token=TOKEN) as client:
        browser.open(address(client) + f"#token={TOKEN}")
        browser.wait("document.querySelector('#token-button').textContent === 'Stop acting'")
        assert TOKEN not in browser.run("location.href")
        assert browser.run("document.cookie") == ""
        assert not any(TOKEN in url for url in browser.requests() if "#" not in url)
        browser.click("#token-button")
        browser.wait("document.querySelector('#token-button').textContent === 'Act with a token'")
        assert browser.run("sessionStorage.length") == 0


def test_an_act_asks_first_and_does_nothing_at_a_no(browser: Chromium, wheel_dir: Path) -> None:
    with Wheel(wheel_dir) as wheel, page(wheel_dir, token=TOKEN) as client:
        id_ = wheel.enqueue(b"hello", delay=600, topic="mail")
        browser.open(address(client, f"message/{id_}"))
        browser.wait("document.querySelector('#view-other .id')")
        assert browser.run("document.querySelectorAll('[data-verb]').length") == 0, "without the token"
        browser.click("#token-button")
        browser.fill("#token", "not-the-right-token")
        browser.run("document.querySelector('#ask form').requestSubmit()")
        browser.wait("document.querySelector('#ask [role=alert]').textContent.includes('not the token')")
        browser.fill("#token", TOKEN)
        browser.run("document.querySelector('#ask form').requestSubmit()")
        browser.wait("document.querySelector('[data-verb=cancel]') && !document.querySelector('#ask').open")
        browser.click("[data-verb=cancel]")
        browser.wait("document.querySelector('#ask-title')?.textContent === 'Cancel 1 message?'")
        browser.click("#ask button[value=no]")
        assert wheel.get(id_) is not None
        browser.click("[data-verb=cancel]")
        browser.wait("document.querySelector('#ask').open && document.querySelector('#ask button[value=yes]')")
        browser.press("Escape")
        browser.wait("!document.querySelector('#ask').open")
        assert wheel.get(id_) is not None
        browser.click("[data-verb=cancel]")
        browser.wait("document.querySelector('#ask').open && document.querySelector('#ask button[value=yes]')")
        browser.click("#ask button[value=yes]")
        browser.wait("document.querySelector('#done')?.textContent === '1 cancelled'")
        assert wheel.get(id_) is None


def test_a_dead_letter_is_revived_from_its_list(browser: Chromium, wheel_dir: Path) -> None:
    with (
        Wheel(wheel_dir) as wheel,
        Keeper(wheel_dir, background=False) as keeper,
        page(wheel_dir, token=TOKEN) as client,
    ):
        wheel.enqueue(b"x", topic="webhook")
        for message in keeper.claim():
            keeper.bury(message, reason="it answered 500")
        browser.open(address(client) + f"#token={TOKEN}")
        browser.wait("document.querySelector('#token-button').textContent === 'Stop acting'")
        browser.press("d")
        browser.wait("document.querySelector('[data-verb=revive]')")
        assert "it answered 500" in browser.text("#view-other")
        browser.click("[data-verb=revive]")
        browser.wait("document.querySelector('#ask button[value=yes]')")
        browser.click("#ask button[value=yes]")
        browser.wait("document.querySelector('#done')?.textContent === '1 revived'")
        browser.wait("document.querySelector('#view-other').innerText.includes('no dead letters')")
        assert len(list(wheel.list())) == 1


def test_a_topic_is_paused_and_resumed_after_a_question_and_only_with_the_token(
    browser: Chromium, wheel_dir: Path
) -> None:
    with Wheel(wheel_dir) as wheel, page(wheel_dir, token=TOKEN) as client:
        wheel.enqueue(b"x", delay=-60, topic="mail")
        wheel.pause(schedule="<b>night</b>", why="<script>window.pwned = 1</script>")
        browser.open(address(client, "pauses"))
        browser.wait("document.querySelector('#view-other tbody')?.innerText.includes('schedule <b>night</b>')")
        assert "<script>" in browser.text("#view-other")
        assert browser.run("document.querySelectorAll('[data-verb], form.search').length") == 0, "without the token"
        browser.open(address(client) + f"#token={TOKEN}")
        browser.wait("document.querySelector('#token-button').textContent === 'Stop acting'")
        browser.press("p")
        browser.wait("document.querySelector('#view-other form.search')")
        browser.fill("#find", "mail")
        browser.fill("[name=why]", "down")
        ask = "document.querySelector('#view-other form.search').requestSubmit()"
        title = "document.querySelector('#ask-title')?.textContent"
        browser.run(ask)
        browser.wait(f"{title}?.startsWith('Pause topic mail?')")
        browser.click("#ask button[value=no]")
        assert len(wheel.paused()) == 1
        browser.run(ask)
        browser.wait("document.querySelector('#ask').open && document.querySelector('#ask button[value=yes]')")
        browser.click("#ask button[value=yes]")
        browser.wait("document.querySelector('#done')?.textContent === 'topic mail is paused'")
        assert [(str(pause), pause.why) for pause in wheel.paused()][1] == ("topic mail", "down")
        browser.click("#ask button[value=no]")
        browser.wait("document.querySelectorAll('#view-other tbody tr').length === 2")
        browser.press("n")
        assert "<script>" in browser.text("#paused")
        browser.wait("document.querySelector('[data-tile=\\'Due and paused\\']')")
        browser.wait("document.querySelector('#next tbody')?.innerText.includes('paused')")
        assert not browser.run("document.querySelector('[data-tile=Overdue]')")
        browser.run("document.querySelectorAll('#paused [data-verb=resume]')[1].click()")
        browser.wait(f"{title} === 'Resume topic mail? What is due fires at once, in order.'")
        browser.click("#ask button[value=yes]")
        browser.wait("document.querySelector('#done')?.textContent === 'topic mail is resumed'")
        browser.wait("document.querySelectorAll('#paused p').length === 1")
        assert [str(pause) for pause in wheel.paused()] == ["schedule <b>night</b>"]
        assert browser.run("window.pwned === undefined")
        wheel.resume(everything=True)


def test_what_runs_fails_and_has_ended_is_shown(browser: Chromium, wheel_dir: Path) -> None:
    with Wheel(wheel_dir) as wheel, Keeper(wheel_dir) as keeper, page(wheel_dir) as client:
        id_ = wheel.enqueue(b"x", topic="<b>webhook</b>")
        batch = eventually(keeper.claim)
        browser.open(address(client))
        browser.wait("document.querySelector('#runs tbody')?.innerText.includes('runs for')")
        assert "<b>webhook</b>" in browser.text("#runs")
        (message,) = batch
        keeper.bury(message, reason="it answered <script>500</script>")
        browser.press("h")
        browser.wait("document.querySelector('#view-other h2')?.textContent === 'History'")
        again = "document.querySelector('#view-other [type=submit]').click()"
        browser.wait(f"document.querySelector('#view-other tbody') || {again}")
        assert "it answered <script>500</script>" in browser.text("#view-other")
        browser.run(f"location.hash = '#/message/{id_}'")
        browser.wait("document.querySelector('#view-other h2')?.textContent === 'Not pending any more'")
        assert "dead" in browser.text("#view-other")


def test_a_search_goes_on_over_pages_and_back(browser: Chromium, wheel_dir: Path) -> None:
    with Wheel(wheel_dir) as wheel, page(wheel_dir) as client:
        wheel.enqueue_many([b"x"] * 130, delay=[60 + n for n in range(130)], topic=["a", "b"] * 65)
        rows = "document.querySelectorAll('#view-other tbody tr').length"
        first = "document.querySelector('#view-other tbody a').getAttribute('href')"
        browser.open(address(client))
        browser.wait("document.querySelector('#state').textContent.startsWith('live')")
        browser.press("/")
        browser.wait(f"document.activeElement.id === 'find' && {rows} === 50")
        browser.fill("#find", "b")
        browser.press("Enter")
        browser.wait(
            f"{rows} === 50 && document.querySelector('#view-other [role=status]').textContent.includes('100')"
        )
        at_first = browser.run(first)
        browser.wait("!document.querySelectorAll('#view-other .bar button')[1].disabled")
        browser.run("document.querySelectorAll('#view-other .bar button')[1].click()")
        browser.wait(f"{rows} === 15")
        ids = [str(m.id) for m in wheel.list(topic="b")]
        assert browser.run(first) == f"#/message/{ids[50]}"
        browser.wait("!document.querySelectorAll('#view-other .bar button')[0].disabled")
        browser.run("document.querySelectorAll('#view-other .bar button')[0].click()")
        browser.wait(f"{rows} === 50")
        assert browser.run(first) == at_first == f"#/message/{ids[0]}"


def test_a_wheel_that_is_missing_is_a_clear_page_and_is_shown_when_it_comes(browser: Chromium, tmp_path: Path) -> None:
    path = tmp_path / "later.wheel"
    with page(path) as client:
        browser.open(address(client))
        browser.wait("document.querySelector('#troubles').innerText.includes('no such directory')")
        assert "Try:" in browser.text("#troubles")
        Wheel.create(path).close()
        browser.wait("document.querySelector('.wheel .hub')?.textContent === '0'")
        assert browser.text("#troubles") == ""


def test_a_backup_is_named_as_one(browser: Chromium, tmp_path: Path) -> None:
    primary, backup = tmp_path / "a.wheel", tmp_path / "b.wheel"
    make_set(primary, backup)
    with page(backup) as client:
        browser.open(address(client))
        browser.wait("document.querySelector('[data-tile=Backups]')?.innerText.includes('this is a backup')")
        browser.press("b")
        browser.wait("document.querySelector('#view-other').innerText.includes('epoch 1')")
    with page(primary) as client:
        browser.open(address(client, "backups"))
        browser.wait("document.querySelectorAll('#view-other tbody tr').length === 1")
        assert "no replicator follows" in browser.text("#view-other")


@pytest.mark.parametrize("is_dark", [False, True])
@pytest.mark.parametrize("view", ["", "messages", "dead", "history", "schedules", "topics", "pauses", "backups"])
def test_on_a_narrow_screen_nothing_is_wider_than_it(
    browser: Chromium, wheel_dir: Path, view: str, is_dark: bool
) -> None:
    with Wheel(wheel_dir) as wheel, page(wheel_dir) as client:
        for n in range(9):
            wheel.enqueue(b"w" * 300, delay=30 + n, topic="a.topic.without.a.space." * 8, key=f"{n}" * 200)
        wheel.pause(topic="a.topic.without.a.space." * 8, why="w" * 300)
        browser.open(address(client, view), width=320, height=640, is_dark=is_dark)
        browser.wait("document.querySelector('#state').textContent.startsWith('live')")
        browser.wait("document.querySelector('#view-other h2') || document.querySelector('#next table')")
        assert browser.run("document.documentElement.scrollWidth") <= 320


CONTRAST = """
(() => {
  const rgb = (text) => text.match(/[\\d.]+/g).slice(0, 3).map(Number);
  const light = (c) => rgb(c).map((v) => (v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = (e) => { for (; e; e = e.parentElement) { const c = getComputedStyle(e).backgroundColor;
    if (!/, 0\\)|transparent/.test(c)) return c; } return getComputedStyle(document.documentElement).backgroundColor; };
  const low = [];
  for (const e of document.querySelectorAll('body *')) {
    const own = [...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim());
    if (!own || !e.checkVisibility() || e.closest('svg') || e.closest('.skip')) continue;
    const [a, b] = [light(getComputedStyle(e).color), light(behind(e))].sort((x, y) => y - x);
    if ((a + 0.05) / (b + 0.05) < 4.5) low.push(`${e.tagName} ${e.textContent.slice(0, 30)}`);
  }
  return low;
})()
"""


@pytest.mark.parametrize("is_dark", [False, True])
def test_all_text_has_contrast_each_control_a_name_and_a_focus_that_is_seen(
    browser: Chromium, wheel_dir: Path, is_dark: bool
) -> None:
    with Wheel(wheel_dir) as wheel, page(wheel_dir, token=TOKEN) as client:
        wheel.enqueue(b"late", delay=-500)
        for view in ("", "messages", "schedules"):
            browser.open(address(client, view), is_dark=is_dark)
            browser.wait("document.querySelector('#state').textContent.startsWith('live')")
            browser.wait("document.querySelector('#view-other h2') || document.querySelector('#next table')")
            assert browser.run(CONTRAST) == []
            unnamed = browser.run(
                "[...document.querySelectorAll('button, input, a, select')].filter((e) => e.checkVisibility() && "
                "!(e.textContent.trim() || e.getAttribute('aria-label') || e.labels?.length)).length"
            )
            assert unnamed == 0
            assert browser.run(
                "[...document.querySelectorAll('[role=img]')].every((e) => e.getAttribute('aria-label'))"
            )
        browser.press("Tab")
        seen = browser.run("[document.activeElement.tagName, getComputedStyle(document.activeElement).outlineStyle]")
        assert seen[0] != "BODY"
        assert seen[1] != "none"


def test_a_hidden_page_costs_the_server_no_stream(browser: Chromium, wheel_dir: Path) -> None:
    with page(wheel_dir) as client:
        browser.open(address(client))
        browser.wait("document.querySelector('#state').textContent.startsWith('live')")
        streams = client.server._page.streams
        assert streams.open == 1
        browser.run("Object.defineProperty(document, 'hidden', { value: true, configurable: true });"
                    "document.dispatchEvent(new Event('visibilitychange'))")  # fmt: skip
        browser.wait("true", meanwhile=lambda: None)
        eventually(lambda: streams.open == 0)
