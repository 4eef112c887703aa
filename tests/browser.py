"""Drives Debian's Chromium over a pipe, with the network off: no driver, no package needed."""

from __future__ import annotations

import json
import os
import select
import shlex
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)
FLAGS = (
    "--headless=new --no-sandbox --disable-gpu --disable-dev-shm-usage --no-first-run "
    "--disable-extensions --disable-background-networking --disable-component-update "
    "--disable-sync --hide-scrollbars --force-device-scale-factor=1 "
    "--host-resolver-rules='MAP * ~NOTFOUND' --remote-debugging-pipe"
)


class Browser:
    """One Chromium with one tab."""

    def __init__(self, profile: Path) -> None:
        # Chromium reads commands from descriptor 3 and answers on 4.
        commands, self.to_browser = os.pipe()
        self.from_browser, answers = os.pipe()
        start = f"exec {CHROMIUM} {FLAGS} --user-data-dir={shlex.quote(str(profile))} about:blank"
        # 8 and 9 in between: one of the pipes may itself be 3 or 4.
        redirect = f"8<&{commands} 9>&{answers} 3<&8 4>&9"
        self.process = subprocess.Popen(
            ["bash", "-c", f"{start} {redirect}"],
            pass_fds=(commands, answers),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(commands)
        os.close(answers)
        self.buffer, self.number, self.session = b"", 0, ""
        self.events: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self.session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        off = {"latency": 0, "downloadThroughput": 0, "uploadThroughput": 0}
        self.call("Network.emulateNetworkConditions", offline=True, **off)

    def close(self) -> None:
        self.process.terminate()
        self.process.wait(30)
        os.close(self.to_browser)
        os.close(self.from_browser)

    def read(self, deadline: float) -> dict[str, Any]:
        """The next message; they end with a zero byte."""
        while b"\0" not in self.buffer:
            ready, _, _ = select.select([self.from_browser], [], [], deadline - time.monotonic())
            part = os.read(self.from_browser, 1 << 20) if ready else b""
            if not part:
                raise AssertionError("Chromium did not answer" if not ready else "Chromium ended")
            self.buffer += part
        message, self.buffer = self.buffer.split(b"\0", 1)
        return json.loads(message)

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        self.number += 1
        command = {"id": self.number, "method": method, "params": params}
        if self.session:
            command["sessionId"] = self.session
        message = json.dumps(command).encode() + b"\0"
        while message:  # a pipe takes 64 kB at a time
            message = message[os.write(self.to_browser, message) :]
        deadline = time.monotonic() + 60
        while True:
            answer = self.read(deadline)
            if answer.get("id") == self.number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return answer["result"]
            self.events.append(answer)

    def evaluate(self, expression: str) -> Any:
        """What a piece of JavaScript comes to; a promise is waited for."""
        answer = self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def open(self, file: Path, width: int = 1280, height: int = 900, scheme: str = "light") -> None:
        """Show a page, and wait until it has been drawn."""
        self.events.clear()
        screen = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.call("Emulation.setDeviceMetricsOverride", **screen)
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.call("Emulation.setEmulatedMedia", features=features)
        self.call("Page.navigate", url=file.resolve().as_uri())
        deadline = time.monotonic() + 60
        while not any(event["method"] == "Page.loadEventFired" for event in self.events):
            self.events.append(self.read(deadline))
        self.drawn()

    def drawn(self) -> None:
        """Two frames later whatever was asked for is on the screen."""
        self.evaluate(
            "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(1))))"
        )

    def trouble(self) -> list[str]:
        """Exceptions, console errors and blocked loads since the page was opened."""
        self.drawn()
        found = []
        for event in self.events:
            method, params = event["method"], event["params"]
            if method == "Runtime.exceptionThrown":
                found.append(str(params["exceptionDetails"]))
            elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
                found.append(params["entry"]["text"])
            elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning"):
                found.append(str(params["args"]))
        return found

    def requests(self) -> list[str]:
        """The addresses asked for since the page was opened."""
        sent = [e for e in self.events if e["method"] == "Network.requestWillBeSent"]
        return [event["params"]["request"]["url"] for event in sent]

    def mouse(self, kind: str, x: float, y: float, **more: Any) -> None:
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)

    def click(self, x: float, y: float, count: int = 1) -> None:
        self.mouse("mouseMoved", x, y)
        for number in range(1, count + 1):
            self.mouse("mousePressed", x, y, button="left", clickCount=number)
            self.mouse("mouseReleased", x, y, button="left", clickCount=number)
        self.drawn()

    def drag(self, x: float, y: float, dx: float) -> None:
        self.mouse("mousePressed", x, y, button="left", clickCount=1)
        for part in (0.25, 0.5, 0.75, 1):
            self.mouse("mouseMoved", x + part * dx, y, button="left", buttons=1)
        self.mouse("mouseReleased", x + dx, y, button="left", clickCount=1)
        self.drawn()

    def wheel(self, x: float, y: float, delta: float) -> None:
        self.mouse("mouseWheel", x, y, deltaX=0, deltaY=delta)
        self.drawn()

    def key(self, key: str) -> None:
        text = {"text": key} if len(key) == 1 else {}
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key, **text)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key)
        self.drawn()
