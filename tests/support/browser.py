"""A real browser without a window: Chromium, driven through its own pipe in the DevTools protocol."""

import base64
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine: apt-get install chromium")
FLAGS = [
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-extensions",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
]
PATIENCE = 30.0
"""Seconds until a silent browser is given up."""


class Browser:
    """One tab. What a page prints, throws or fails to load is kept in `complaints`."""

    def __init__(self, profile: Path) -> None:
        assert CHROMIUM is not None
        commands, self._commands = os.pipe()
        self._answers, answers = os.pipe()
        command = [CHROMIUM, *FLAGS, f"--user-data-dir={profile}", "about:blank"]

        def connect() -> None:
            """The protocol is spoken on the descriptors 3 and 4; far numbers first, as either may be in use for it."""
            for far, pipe in ((103, commands), (104, answers)):
                os.dup2(pipe, far, inheritable=False)
            for near, far in ((3, 103), (4, 104)):
                os.dup2(far, near)

        quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self._process = subprocess.Popen(command, preexec_fn=connect, close_fds=False, **quiet)
        os.close(commands)
        os.close(answers)
        self._buffer, self._number = b"", 0
        self.complaints: list[str] = []
        self.events: list[str] = []
        self._own: tuple[str, ...] = ()  # how the addresses begin that a page may ask for
        self._session: str | None = None
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(PATIENCE)
        os.close(self._commands)
        os.close(self._answers)

    def send(self, method: str, **params: Any) -> dict[str, Any]:
        """A command of the protocol and its answer; events that come meanwhile are noted."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']['message']}")
                return answer["result"]

    def _receive(self) -> dict[str, Any]:
        deadline = time.monotonic() + PATIENCE
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._answers], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                raise TimeoutError("the browser does not answer")
            piece = os.read(self._answers, 1 << 20)
            if not piece:
                raise RuntimeError("the browser has gone")
            self._buffer += piece
        line, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        self._note(message.get("method", ""), message.get("params", {}))
        return message

    def _note(self, event: str, facts: dict[str, Any]) -> None:
        self.events.append(event)
        if event == "Runtime.exceptionThrown":
            self.complaints.append(json.dumps(facts["exceptionDetails"]))
        elif event == "Runtime.consoleAPICalled" and facts["type"] in ("error", "warning", "assert"):
            self.complaints.append(json.dumps(facts["args"]))
        elif event == "Log.entryAdded" and facts["entry"]["level"] in ("error", "warning"):
            self.complaints.append(json.dumps(facts["entry"]))
        elif event == "Network.requestWillBeSent" and not facts["request"]["url"].startswith(self._own):
            self.complaints.append(f"asked the network for {facts['request']['url']}")

    def open(self, page: Path | str, *, width: int = 1440, height: int = 900, dark: bool = False) -> float:
        """Shows a file, or what a server has at a URL, and waits until it has loaded; returns the seconds that took."""
        url = page if isinstance(page, str) else page.resolve().as_uri()
        self._own = ("file:", "data:", f"blob:{page}", f"{page}/") if isinstance(page, str) else ("file:", "data:")
        self.send(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.send("Emulation.setEmulatedMedia", features=[scheme])
        self.complaints.clear()
        self.events.clear()
        started = time.monotonic()
        self.send("Page.navigate", url=url)
        while "Page.loadEventFired" not in self.events:
            self._receive()
        self.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(0))))")
        return time.monotonic() - started

    def evaluate(self, expression: str) -> Any:
        """The value of an expression in the page."""
        answer = self.send("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(json.dumps(answer["exceptionDetails"]))
        return answer["result"].get("value")

    def click(self, selector: str) -> None:
        """A real click of the mouse in the middle of the first such element that is shown."""
        place = self.evaluate(
            f"""(() => {{
              const shown = [...document.querySelectorAll({json.dumps(selector)})].find(e => e.getClientRects().length);
              shown.scrollIntoView({{block: "center", inline: "center"}});
              const box = shown.getBoundingClientRect();
              return [box.x + box.width / 2, box.y + box.height / 2];
            }})()"""
        )
        for kind in ("mousePressed", "mouseReleased"):
            self.send("Input.dispatchMouseEvent", type=kind, x=place[0], y=place[1], button="left", clickCount=1)

    def choose(self, selector: str, *files: Path) -> None:
        """Puts files into an input, as its dialogue does."""
        root = self.send("DOM.getDocument")["root"]["nodeId"]
        node = self.send("DOM.querySelector", nodeId=root, selector=selector)["nodeId"]
        self.send("DOM.setFileInputFiles", nodeId=node, files=[str(file.resolve()) for file in files])

    def drop(self, selector: str, *files: Path) -> None:
        """Drags files over an element and lets them go there."""
        box = f"document.querySelector({json.dumps(selector)}).getBoundingClientRect()"
        x, y = self.evaluate(f"[{box}.x + 20, {box}.y + 20]")
        data = {"items": [], "files": [str(file.resolve()) for file in files], "dragOperationsMask": 1}
        for kind in ("dragEnter", "dragOver", "drop"):
            self.send("Input.dispatchDragEvent", type=kind, x=x, y=y, data=data)

    def wait(self, condition: str) -> None:
        """Until an expression in the page is true."""
        until = time.monotonic() + PATIENCE
        while not self.evaluate(condition):
            assert time.monotonic() < until, f"never: {condition}"
            time.sleep(0.02)

    def press(self, key: str, code: int) -> None:
        for kind in ("rawKeyDown", "char", "keyUp"):
            text = {"text": "\r"} if kind == "char" and key == "Enter" else {}
            self.send("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code, **text)

    def screenshot(self, path: Path, *, whole: bool = True) -> None:
        picture = self.send("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(picture["data"]))
