# SPDX-License-Identifier: Apache-2.0
"""A real browser (Chromium without a window) to try pages with: loads them, clicks, types, and looks."""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or ""
_TIMEOUT_SECONDS = 60.0


class BrowserError(Exception):
    """The page's script failed, or the browser did."""


class Browser:
    """One tab, spoken to in Chromium's own protocol over a pair of pipes.

    All that the page logs as an error, and what its policy forbids, is in `complaints`.
    """

    def __init__(self, profile: Path) -> None:
        """``profile``: an empty folder for what the browser keeps."""
        ours_in, theirs_out = os.pipe()
        theirs_in, ours_out = os.pipe()
        self._in, self._out = ours_in, ours_out
        self._buffer = b""
        self._numbers = itertools.count(1)
        self.complaints: list[str] = []
        arguments = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe"]
        arguments += ["--no-first-run", "--hide-scrollbars", f"--user-data-dir={profile}", "about:blank"]
        # The browser wants them as descriptors 3 and 4: a shell puts them there.
        shell = ["bash", "-c", f'exec "$@" 3<&{theirs_in} 4>&{theirs_out}', "sh", *arguments]
        self._process = subprocess.Popen(
            shell, pass_fds=(theirs_in, theirs_out), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        os.close(theirs_in)
        os.close(theirs_out)
        self._session = ""
        pages = [one for one in self._call("Target.getTargets")["targetInfos"] if one["type"] == "page"]
        self._session = self._call("Target.attachToTarget", targetId=pages[0]["targetId"], flatten=True)[
            "sessionId"
        ]
        for domain in ("Page", "Runtime", "Log"):
            self._call(f"{domain}.enable")

    def __enter__(self) -> Browser:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(BrowserError, OSError):
            self._session = ""
            self._call("Browser.close")
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._in)
        os.close(self._out)

    def open(self, address: str) -> None:
        """Load a page and wait for its script."""
        self._call("Page.navigate", url="about:blank")
        self._call("Page.navigate", url=address)
        self.wait_for("document.readyState === 'complete' && location.href !== 'about:blank'")

    def resize(self, width: int, height: int = 1000, *, dark: bool = False) -> None:
        """Another window, and the colours that its user likes."""
        self._call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._call("Emulation.setEmulatedMedia", features=[scheme])

    def run(self, script: str) -> Any:
        """The value of an expression in the page."""
        answer = self._call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise BrowserError(json.dumps(answer["exceptionDetails"])[:2000])
        return answer["result"].get("value")

    def wait_for(self, script: str) -> None:
        """Until an expression is true."""
        end = time.monotonic() + _TIMEOUT_SECONDS
        while not self.run(script):
            if time.monotonic() > end:
                raise BrowserError(f"never came true: {script}")
            time.sleep(0.02)

    def click(self, selector: str) -> None:
        """With the mouse, in the middle of an element."""
        box = self.run(
            f"(e => {{ e.scrollIntoView({{block: 'nearest'}}); const b = e.getBoundingClientRect();"
            f" return [b.x + b.width / 2, b.y + b.height / 2]; }})(document.querySelector({json.dumps(selector)}))"
        )
        self.click_at(*box)

    def click_at(self, x: float, y: float) -> None:
        """With the mouse, somewhere in the window."""
        for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
            self._call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def drag(self, begin: tuple[float, float], end: tuple[float, float]) -> None:
        """With the mouse, from one place in the window to another."""
        middle = (begin[0] + end[0]) / 2, (begin[1] + end[1]) / 2
        steps = (("Moved", begin), ("Pressed", begin), ("Moved", middle), ("Moved", end), ("Released", end))
        for kind, (x, y) in steps:
            button = {"button": "left", "clickCount": 1} if kind != "Moved" else {}
            self._call("Input.dispatchMouseEvent", type=f"mouse{kind}", x=x, y=y, **button)

    def press(self, *keys: str, shift: bool = False) -> None:
        """Keys by their names."""
        for key in keys:
            text = {"Enter": "\r"}.get(key, key if len(key) == 1 else "")
            code = {
                "Enter": 13,
                "Escape": 27,
                "ArrowLeft": 37,
                "ArrowUp": 38,
                "ArrowRight": 39,
                "ArrowDown": 40,
            }
            number = code.get(key, ord(key.upper()) if len(key) == 1 else 0)
            down = {
                "type": "keyDown" if text else "rawKeyDown",
                "key": key,
                "windowsVirtualKeyCode": number,
                "modifiers": 8 * shift,
            }
            self._call("Input.dispatchKeyEvent", **down, **({"text": text} if text else {}))
            self._call("Input.dispatchKeyEvent", type="keyUp", key=key, windowsVirtualKeyCode=number)

    def picture(self, path: Path, *, whole: bool = False) -> None:
        """A picture of what is in the window; ``whole``: of the whole page."""
        answer = self._call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(answer["data"]))

    def _call(self, method: str, **parameters: Any) -> dict[str, Any]:
        number = next(self._numbers)
        message: dict[str, Any] = {"id": number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._out, data) :]
        for answer in self._messages():
            if answer.get("id") == number:
                if "error" in answer:
                    raise BrowserError(f"{method}: {answer['error']}")
                result: dict[str, Any] = answer["result"]
                return result
            self._note(answer)
        raise BrowserError("the browser ended")

    def _note(self, event: dict[str, Any]) -> None:
        if event.get("method") == "Runtime.exceptionThrown":
            self.complaints.append(json.dumps(event["params"]["exceptionDetails"])[:2000])
        if event.get("method") == "Log.entryAdded" and event["params"]["entry"]["level"] == "error":
            self.complaints.append(event["params"]["entry"]["text"])

    def _messages(self) -> Iterator[dict[str, Any]]:
        while True:
            while b"\0" not in self._buffer:
                if not select.select([self._in], [], [], _TIMEOUT_SECONDS)[0]:
                    raise BrowserError("the browser does not answer")
                chunk = os.read(self._in, 1 << 20)
                if not chunk:
                    return
                self._buffer += chunk
            message, self._buffer = self._buffer.split(b"\0", 1)
            yield json.loads(message)
