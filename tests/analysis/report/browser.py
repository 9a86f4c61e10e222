"""A real headless Chromium, driven over its own debugging pipe (the Chrome DevTools Protocol: JSON between zero bytes
on file descriptors 3 and 4). What a page is asked here takes a dozen of its messages, which need no library.

    with Browser() as browser:
        browser.open(Path("report.html"), width=390)
        browser.evaluate("document.title")
        browser.press("Escape")
        assert browser.errors == []
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

from axe_core_python.base import AXE_SCRIPT

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
# Without a sandbox, because root has none; the pages are our own.
FLAGS = "--headless --no-sandbox --disable-gpu --disable-dev-shm-usage --no-first-run --remote-debugging-pipe"
TIMEOUT_S = 60
KEYS = {"Escape": 27, "Enter": 13, "Tab": 9, "Space": 32, "ArrowRight": 39, "ArrowDown": 40, "Home": 36}


def program() -> str | None:
    """The browser, or None where there is none."""
    return next((found for name in PROGRAMS if (found := shutil.which(name))), None)


class BrowserError(RuntimeError):
    """The browser did not start, did not answer in time, or a script in the page raised."""


class Browser:
    """One page of a browser of its own. `errors`: what its console, its scripts and its network complained of."""

    def __init__(self) -> None:
        self.errors: list[str] = []
        self._sent, self._rest = 0, b""
        self._events: list[dict] = []

    def __enter__(self) -> Browser:
        self._home = tempfile.TemporaryDirectory(prefix="ns-chromium-", ignore_cleanup_errors=True)
        theirs_in, self._out = os.pipe()
        self._in, theirs_out = os.pipe()
        # The shell puts the pipe where the browser looks for it; it goes through /dev/fd as numbers above 9 do not.
        redirect = f'exec "$0" "$@" 3</dev/fd/{theirs_in} 4>/dev/fd/{theirs_out}'
        command = ["sh", "-c", redirect, str(program()), *FLAGS.split(), f"--user-data-dir={self._home.name}"]
        self._process = subprocess.Popen(
            command, pass_fds=(theirs_in, theirs_out), stderr=subprocess.DEVNULL, start_new_session=True
        )
        os.close(theirs_in)
        os.close(theirs_out)
        target = self._call("Target.createTarget", {"url": "about:blank"}, session=None)["targetId"]
        attach = {"targetId": target, "flatten": True}
        self._session = self._call("Target.attachToTarget", attach, session=None)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._call(f"{domain}.enable")
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        os.close(self._in)
        os.close(self._out)
        self._home.cleanup()

    def open(self, page: Path | str, width: int = 1280, height: int = 900, dark: bool = False) -> None:
        """Load a file in a window of so many CSS pixels, and wait until it is there."""
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self._call("Emulation.setEmulatedMedia", {"media": "", "features": scheme})
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self._call("Emulation.setDeviceMetricsOverride", size)
        # By way of an empty page: to an address that differs after its # alone, nothing would be loaded.
        for url in ("about:blank", page if isinstance(page, str) else page.absolute().as_uri()):
            self._events.clear()
            self._call("Page.navigate", {"url": url})
            self._await("Page.loadEventFired")

    def evaluate(self, script: str) -> object:
        """The value of an expression in the page, also of a promise."""
        asked = {"expression": script, "returnByValue": True, "awaitPromise": True}
        answer = self._call("Runtime.evaluate", asked)
        if "exceptionDetails" in answer:
            raise BrowserError(f"{script}: {answer['exceptionDetails']['exception'].get('description')}")
        return answer["result"].get("value")

    def violations(self) -> object:
        """What axe-core finds in the page, unfolded: names, roles, contrast, headings, tables, keyboard; WCAG's rules
        among them."""
        self.evaluate("document.querySelectorAll('details').forEach((e) => { e.open = true; })")
        self.settle()
        self.evaluate(f"{AXE_SCRIPT}; null")
        found = "`${rule.id} (${rule.impact}): ${rule.nodes.map((node) => node.html.slice(0, 80)).join(', ')}`"
        return self.evaluate(f"axe.run().then((told) => told.violations.map((rule) => {found}))")

    def settle(self) -> None:
        """Let the page be drawn, and what watches the sizes of its boxes come to its turn."""
        self.evaluate("new Promise((r) => requestAnimationFrame(() => requestAnimationFrame(r))).then(() => null)")

    def wait(self, true: str) -> None:
        """Until an expression is true: the browser follows a link when it gets to it."""
        until = time.monotonic() + TIMEOUT_S
        while not self.evaluate(true):
            assert time.monotonic() < until, true
            time.sleep(0.02)

    def press(self, key: str) -> None:
        """A key of the keyboard, down and up."""
        number = KEYS[key] if key in KEYS else ord(key.upper())
        code = {"key": " " if key == "Space" else key, "code": key, "windowsVirtualKeyCode": number}
        text = {"Enter": {"text": "\r"}, "Space": {"text": " "}}.get(key, {})
        self._call("Input.dispatchKeyEvent", {"type": "keyDown", **code, **text})
        self._call("Input.dispatchKeyEvent", {"type": "keyUp", **code})

    def write(self, text: str) -> None:
        """Text into the element that has the focus."""
        self._call("Input.insertText", {"text": text})

    def click(self, selector: str) -> None:
        """The pointer on the middle of an element, once the page is drawn."""
        self.settle()
        where = f"""(() => {{ const e = document.querySelector({json.dumps(selector)});
            e.scrollIntoView({{block: "center"}}); const b = e.getBoundingClientRect();
            return [b.x + b.width / 2, b.y + b.height / 2]; }})()"""
        self.point(*self.evaluate(where), press=True)

    def point(self, x: float, y: float, press: bool = False) -> None:
        """The pointer to a place of the window, and its button down and up."""
        for kind in ("mouseMoved", *(("mousePressed", "mouseReleased") if press else ())):
            at = {"type": kind, "x": x, "y": y, "button": "left" if press else "none", "clickCount": 1}
            self._call("Input.dispatchMouseEvent", at)

    def downloads(self, folder: Path) -> None:
        """Where files go that the page gives."""
        self._call("Browser.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(folder)}, session=None)

    def screenshot(self, whole: bool = False) -> bytes:
        """PNG of the window, or of the whole page."""
        answer = self._call("Page.captureScreenshot", {"captureBeyondViewport": whole, **self._clip(whole)})
        return base64.b64decode(answer["data"])

    def _clip(self, whole: bool) -> dict:
        if not whole:
            return {}
        size = self._call("Page.getLayoutMetrics")["cssContentSize"]
        return {"clip": {**size, "x": 0, "y": 0, "scale": 1}}

    def pdf(self) -> bytes:
        """The page as printed on A4."""
        paper = {"paperWidth": 8.27, "paperHeight": 11.69, "printBackground": False, "preferCSSPageSize": True}
        return base64.b64decode(self._call("Page.printToPDF", paper)["data"])

    def print_media(self, width: int = 703) -> None:
        """Show it as it is printed, on a screen as wide as A4 within its margins."""
        self._call("Emulation.setEmulatedMedia", {"media": "print"})
        self._call(
            "Emulation.setDeviceMetricsOverride",
            {"width": width, "height": 1000, "deviceScaleFactor": 1, "mobile": False},
        )

    def _call(self, method: str, params: dict | None = None, session: str | None = "page") -> dict:
        self._sent += 1
        message = {"id": self._sent, "method": method, "params": params or {}}
        if session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        until = time.monotonic() + TIMEOUT_S
        while True:
            answer = self._read(until, method)
            if answer.get("id") == self._sent:
                if "error" in answer:
                    raise BrowserError(f"{method}: {answer['error']['message']}")
                return answer["result"]

    def _await(self, event: str) -> None:
        until = time.monotonic() + TIMEOUT_S
        while not any(seen["method"] == event for seen in self._events):
            self._read(until, event)

    def _read(self, until: float, what: str) -> dict:
        """The next message. Events are kept, and what they complain of noted."""
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._in], [], [], max(0.0, until - time.monotonic()))
            block = os.read(self._in, 1 << 20) if ready else b""
            if not block:
                raise BrowserError(f"{what}: {'the browser ended' if ready else f'no answer in {TIMEOUT_S} s'}")
            self._rest += block
        text, _, self._rest = self._rest.partition(b"\0")
        message = json.loads(text)
        if "method" in message:
            self._events.append(message)
            self._note(message["method"], message["params"])
        return message

    def _note(self, method: str, told: dict) -> None:
        if method == "Runtime.exceptionThrown":
            details = told["exceptionDetails"]
            self.errors.append(details.get("exception", {}).get("description") or details["text"])
        elif method == "Runtime.consoleAPICalled" and told["type"] in ("error", "warning", "assert"):
            self.errors.append(str([part.get("value") for part in told["args"]]))
        elif method == "Log.entryAdded" and told["entry"]["level"] in ("error", "warning"):
            self.errors.append(told["entry"]["text"])
        elif method == "Network.requestWillBeSent" and not told["request"]["url"].startswith(
            ("file:", "data:", "about:")
        ):
            self.errors.append(f"asked for {told['request']['url']}")
