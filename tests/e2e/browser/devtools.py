"""Control a headless Chromium by its DevTools protocol, for the tests of pages (standard library only).

Begin with :func:`chromium`, which starts the browser and yields a :class:`Page`. With the option
``--remote-debugging-pipe``, Chromium reads commands from descriptor 3 and writes answers to descriptor 4.
Each message is JSON and ends with a NUL byte.
"""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)


def find_chromium() -> str | None:
    """Return the path of a Chromium, or None."""
    return next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


class Page:
    """One tab of the browser.

    ``problems`` collects errors and warnings of the console and the log, exceptions, and issues such as
    violations of the content security policy. ``requests`` collects the address of each request.
    """

    def __init__(self, send: int, receive: int) -> None:
        self._send, self._receive = send, receive
        self._buffer = b""
        self._count = 0
        self._session = ""
        self.problems: list[str] = []
        self.requests: list[str] = []
        self._events: list[str] = []

    def attach(self) -> None:
        """Open the tab, and request the events that :meth:`_note` collects."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network", "Audits"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send one command, wait for its answer, and return its result."""
        self._count += 1
        message: dict[str, Any] = {"id": self._count, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._send, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._count:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]

    def _next(self, seconds: float = 60) -> dict[str, Any]:
        """Wait for the next message of the browser, an answer or an event."""
        end = time.monotonic() + seconds
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._receive], [], [], max(end - time.monotonic(), 0))
            chunk = os.read(self._receive, 1 << 20) if ready else b""
            if not chunk:
                raise TimeoutError("Chromium does not answer")
            self._buffer += chunk
        raw, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(raw)
        self._note(message.get("method", ""), message.get("params", {}))
        return message

    def _note(self, method: str, said: dict[str, Any]) -> None:
        self._events.append(method)
        if method == "Runtime.consoleAPICalled" and said["type"] in ("error", "warning", "assert"):
            self.problems.append(f"console: {said['args']}")
        elif method == "Runtime.exceptionThrown":
            self.problems.append(f"exception: {said['exceptionDetails']}")
        elif method == "Log.entryAdded" and said["entry"]["level"] in ("error", "warning"):
            self.problems.append(f"log: {said['entry']['text']}")
        elif method == "Audits.issueAdded":
            self.problems.append(
                f"issue: {said['issue']['code']}: {json.dumps(said['issue']['details'])[:500]}"
            )
        elif method == "Network.requestWillBeSent":
            self.requests.append(said["request"]["url"])

    def size(self, width: int, height: int = 900) -> None:
        """Set the size of the viewport in CSS pixels. Unlike --window-size, this has no minimum."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )

    def media(self, *, dark: bool = False, media: str = "") -> None:
        """Set the preferred colour scheme, and the medium, which is the screen or ``print``."""
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", media=media, features=[scheme])

    def open(self, path: Path) -> None:
        """Open a file and wait until it is loaded."""
        self._events.clear()
        self.call("Page.navigate", url=path.resolve().as_uri())
        while "Page.loadEventFired" not in self._events:
            self._next()

    def evaluate(self, expression: str) -> Any:
        """Return the value of a JavaScript expression. The page's policy on scripts does not apply to it."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(str(answer["exceptionDetails"]))
        return answer["result"].get("value")

    def screenshot(self, path: Path) -> Path:
        """Write a PNG of the whole page."""
        shot = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(shot["data"]))
        return path

    def pdf(self) -> bytes:
        """Return the page as printed."""
        return base64.b64decode(self.call("Page.printToPDF", printBackground=True)["data"])


@contextmanager
def chromium(program: str, profile: Path) -> Iterator[Page]:
    """Start Chromium and yield its tab. End it after the block."""
    read_commands, write_commands = os.pipe()
    read_answers, write_answers = os.pipe()

    # The protocol needs descriptors 3 and 4. A shell moves the pipes there, so no preexec function is needed.
    command = f'exec "$0" "$@" 3<&{read_commands} 4>&{write_answers}'
    process = subprocess.Popen(
        ["bash", "-c", command, program, *FLAGS, f"--user-data-dir={profile}", "about:blank"],
        pass_fds=(read_commands, write_answers),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    os.close(read_commands)
    os.close(write_answers)
    try:
        page = Page(write_commands, read_answers)
        page.attach()
        yield page
    finally:
        os.close(write_commands)  # end of input ends the browser
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            process.wait()
        os.close(read_answers)
