"""A real Chromium without a screen, driven through its debugging pipe: no driver and no library besides it.

python -m tests.live.chromium http://127.0.0.1:8642/ page.png [WIDTH] [dark]
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-extensions",
    "--disable-dev-shm-usage", "--hide-scrollbars", "--remote-debugging-pipe",
)  # fmt: skip
WAIT_S = 60


def executable() -> str | None:
    """Return the browser of this machine; None where there is none."""
    return next((found for name in NAMES if (found := shutil.which(name))), None)


class BrowserError(AssertionError):
    """The browser refused a command, or a script of the page failed."""


class Chromium:
    """One browser with one page."""

    def __init__(self) -> None:
        program = executable()
        assert program is not None
        self._profile = tempfile.mkdtemp(prefix="filewheel-chromium-")
        theirs_in, self._out = os.pipe()
        self._in, theirs_out = os.pipe()
        # The browser reads from 3 and writes to 4.
        script = f'exec "$0" "$@" 3<&{theirs_in} 4>&{theirs_out}'
        self._process = subprocess.Popen(
            ["bash", "-c", script, program, *FLAGS, f"--user-data-dir={self._profile}"],
            pass_fds=(theirs_in, theirs_out), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        os.close(theirs_in)
        os.close(theirs_out)
        self._rest = b""
        self._number = 0
        self._session: str | None = None
        self.events: list[dict[str, Any]] = []
        """Everything that the page reported: requests, messages of the console, errors."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the browser."""
        os.close(self._out)  # it ends with its pipe
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._in)
        shutil.rmtree(self._profile, ignore_errors=True)

    # -- the protocol --------------------------------------------------------------------------------------------

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Give a command, and return its result."""
        self._number += 1
        number = self._number
        message: dict[str, Any] = {"id": number, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._out, data) :]
        while True:
            found = self._next()
            if found.get("id") == number:
                if "error" in found:
                    raise BrowserError(f"{method}: {found['error']}")
                result: dict[str, Any] = found["result"]
                return result
            if "method" in found:
                self.events.append(found)

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            more = os.read(self._in, 1 << 16)
            assert more, "the browser has ended"
            self._rest += more
        line, _, self._rest = self._rest.partition(b"\0")
        found: dict[str, Any] = json.loads(line)
        return found

    # -- a page --------------------------------------------------------------------------------------------------

    def open(
        self, url: str, *, width: int = 1200, height: int = 900, is_dark: bool = False, still: bool = True
    ) -> None:
        """Go to a page, in a window of this size."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        features = [
            {"name": "prefers-color-scheme", "value": "dark" if is_dark else "light"},
            {"name": "prefers-reduced-motion", "value": "reduce"},
        ]
        self.call("Emulation.setEmulatedMedia", features=features)
        self.call("Page.navigate", url="about:blank")
        self.call("Page.navigate", url=url)
        self.wait("document.readyState === 'complete' && location.href !== 'about:blank'")

    def run(self, script: str) -> Any:
        """Return what an expression gives; a promise is waited for."""
        found = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in found:
            details = found["exceptionDetails"]
            raise BrowserError(f"{script}: {details.get('exception', {}).get('description', details['text'])}")
        return found["result"].get("value")

    def wait(self, script: str, meanwhile: Callable[[], object] = lambda: None) -> None:
        """Wait until an expression gives something true."""
        end = time.monotonic() + WAIT_S
        while True:
            if self.run(f"Boolean({script})"):
                return
            assert time.monotonic() < end, f"{script}\n{self.text()}"
            meanwhile()
            time.sleep(0.05)

    def text(self, selector: str = "body") -> str:
        """Return the text of an element as it is shown."""
        found: str = self.run(f"document.querySelector({json.dumps(selector)})?.innerText ?? ''")
        return found

    def click(self, selector: str) -> None:
        """Click the first element."""
        self.run(f"document.querySelector({json.dumps(selector)}).click()")

    def fill(self, selector: str, text: str) -> None:
        """Put a text into a field."""
        self.run(f"document.querySelector({json.dumps(selector)}).value = {json.dumps(text)}")

    def press(self, key: str) -> None:
        """Press a key."""
        text = key if len(key) == 1 else {"Enter": "\r"}.get(key, "")
        code = {"Enter": 13, "Tab": 9, "Escape": 27}.get(key, ord(key[0].upper()))
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key, text=text, windowsVirtualKeyCode=code)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key, windowsVirtualKeyCode=code)

    def picture(self, path: Path, *, width: int, height: int, scale: float = 1) -> Path:
        """Save the first part of the page as a PNG, in another scale."""
        clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": scale}
        found = self.call("Page.captureScreenshot", format="png", clip=clip, captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(found["data"]))
        return path

    def requests(self) -> list[str]:
        """Return the addresses of all requests so far."""
        sent = [e["params"]["request"]["url"] for e in self.events if e["method"] == "Network.requestWillBeSent"]
        return [url for url in sent if not url.startswith(("about:", "data:"))]  # a field has icons of the browser

    def complaints(self) -> list[str]:
        """Return the errors and warnings of the console, and what a policy refused."""
        found = []
        for event in self.events:
            if event["method"] == "Log.entryAdded" and event["params"]["entry"]["level"] in ("error", "warning"):
                found.append(event["params"]["entry"]["text"])
            elif event["method"] == "Runtime.exceptionThrown":
                found.append(json.dumps(event["params"]["exceptionDetails"]))
            elif event["method"] == "Runtime.consoleAPICalled" and event["params"]["type"] in ("error", "warning"):
                found.append(json.dumps(event["params"]["args"]))
        return found


if __name__ == "__main__":
    with Chromium() as one:
        columns = int(sys.argv[3]) if len(sys.argv) > 3 else 1200
        one.open(sys.argv[1], width=columns, is_dark="dark" in sys.argv)
        time.sleep(2)
        one.picture(Path(sys.argv[2]), width=columns, height=900)
        print(one.complaints(), one.requests())
