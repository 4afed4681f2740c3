"""A real browser without a window, driven through the DevTools protocol on two pipes."""

from __future__ import annotations

import base64
import fcntl
import itertools
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
QUIET = ("first-run", "default-browser-check", "sandbox")
DISABLED = ("gpu", "quic", "background-networking", "component-update", "sync", "dev-shm-usage")


class Tab:
    """One tab of the browser, that shows one page after the other."""

    def __init__(self, write: int, read: int) -> None:
        self._write, self._read = write, read
        self._waiting, self._session = b"", ""
        self._numbers = itertools.count(1)
        target = self("Target.createTarget", url="about:blank")["targetId"]
        self._session = self("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self("Page.enable")
        self("Page.setBypassCSP", enabled=True)

    def __call__(self, method: str, **params: object) -> dict[str, Any]:
        """The answer to a command. Raises RuntimeError where the browser refuses it."""
        number = next(self._numbers)
        command: dict[str, object] = {"id": number, "method": method, "params": params}
        if self._session:
            command["sessionId"] = self._session
        os.write(self._write, json.dumps(command).encode() + b"\0")
        while (output := self._next()).get("id") != number:
            pass
        if "error" in output:
            raise RuntimeError(f"{method}: {output['error']['message']}")
        found: dict[str, Any] = output["result"]
        return found

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._waiting:
            more = os.read(self._read, 1 << 20)
            if not more:
                raise RuntimeError("the browser has ended")
            self._waiting += more
        message, _, self._waiting = self._waiting.partition(b"\0")
        found: dict[str, Any] = json.loads(message)
        return found

    def open(self, page: Path, fragment: str = "") -> None:
        """Returns when the page is there. fragment: what follows its address, with its #."""
        self("Page.navigate", url=page.as_uri() + fragment)
        while self._next().get("method") != "Page.loadEventFired":
            pass

    def look(self, width_px: int, height_px: int, scheme: str = "light") -> None:
        """From now on the window is so large, and the reader has chosen this colour scheme."""
        self("Emulation.setDeviceMetricsOverride", width=width_px, height=height_px, deviceScaleFactor=1, mobile=False)
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self("Emulation.setEmulatedMedia", media="", features=features)

    def run(self, script: str) -> Any:
        """The value of a script, or of the promise that it makes. Raises RuntimeError where it throws."""
        output = self("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in output:
            raise RuntimeError(output["exceptionDetails"].get("exception", {}).get("description", "a script failed"))
        return output["result"].get("value")

    def picture(self) -> bytes:
        """What the window shows as a PNG."""
        return base64.b64decode(self("Page.captureScreenshot")["data"])

    def paper(self) -> bytes:
        """The page as a PDF on A4."""
        size = {"paperWidth": 8.27, "paperHeight": 11.69, "preferCSSPageSize": True}
        return base64.b64decode(self("Page.printToPDF", printBackground=False, **size)["data"])


@contextmanager
def tab(folder: Path) -> Iterator[Tab]:
    """A browser with its profile in this folder; it ends when the block does."""
    theirs_in, ours_out = os.pipe()
    ours_in, theirs_out = os.pipe()
    flags = [*(f"--no-{each}" for each in QUIET), *(f"--disable-{each}" for each in DISABLED)]
    flags += ["--headless", "--hide-scrollbars", "--remote-debugging-pipe", f"--user-data-dir={folder}"]
    # The browser reads commands from descriptor 3 and writes outputs to 4: ours move out of the way first.
    given = [fcntl.fcntl(each, fcntl.F_DUPFD, 10) for each in (theirs_in, theirs_out)]
    moved = f'exec "$0" "$@" 3<&{given[0]} 4>&{given[1]}'
    command = ["bash", "-c", moved, str(CHROMIUM), *flags]
    with subprocess.Popen(command, pass_fds=given, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as browser:
        for each in (theirs_in, theirs_out, *given):
            os.close(each)
        try:
            yield Tab(ours_out, ours_in)
        finally:
            os.close(ours_out)
            os.close(ours_in)
            browser.terminate()
