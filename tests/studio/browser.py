"""A browser on the studio's pages, and the studio itself as a process."""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

PICTURES = os.environ.get("NPUKIT_SCREENSHOTS")
COLOURS = 128
PATIENCE = 180  # seconds; a training with a simulated NPU takes 20 of them on two cores
IN_PAGE = """
const button = (text) => [...document.querySelectorAll('button, .button')].find(each => each.textContent === text);
const labelled = (text) => document.getElementById([...document.querySelectorAll('label')].find(each =>
  each.firstChild.textContent.trim() === text)?.htmlFor);
const write = (input, text) => { input.value = text; input.dispatchEvent(new Event('input'));
  input.dispatchEvent(new Event('change')); };
"""


class Server:
    """A studio, started again after it was killed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.start()

    def start(self, port: int = 0) -> None:
        words = [sys.executable, "-m", "npukit", "studio", str(self.folder), "--port", str(port)]
        self.process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout
        self.address = self.process.stdout.readline().split()[-1]
        self.origin = self.address.partition("?")[0]

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def kill_and_start(self) -> None:
        self.kill()
        self.start(int(self.origin.rpartition(":")[2].strip("/")))


class Browser:
    """A headless Chromium, driven by what a user sees: labels and texts of buttons."""

    def __init__(self, server: Server) -> None:
        from selenium import webdriver

        options = webdriver.ChromeOptions()
        options.binary_location = shutil.which("chromium") or ""
        options.set_capability("goog:loggingPrefs", {"performance": "ALL", "browser": "ALL"})
        for argument in (
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--window-size=1280,900",
            "--hide-scrollbars",
        ):
            options.add_argument(argument)
        self.driver: Any = webdriver.Chrome(
            options=options, service=webdriver.ChromeService(shutil.which("chromedriver"))
        )
        self.server = server
        self.driver.get(server.address)

    def do(self, script: str) -> Any:
        """The result of a script in the page."""
        return self.driver.execute_script(IN_PAGE + script)

    def until(self, condition: str) -> Any:
        """Wait for a condition in the page, and its value; what the page shows if that takes too long."""
        deadline = time.monotonic() + PATIENCE
        while not (value := self.do(f"return {condition}")):
            if time.monotonic() > deadline:
                page = self.do("return document.body.innerText")
                raise AssertionError(f"not true after {PATIENCE} s: {condition}. The page shows:\n{page}")
            time.sleep(0.05)
        return value

    def show(self, page: str) -> None:
        """Open a page anew."""
        self.driver.get("about:blank")
        self.driver.get(f"{self.server.origin}#/{page}")
        self.until("document.querySelector('.page')")

    def press(self, text: str) -> None:
        self.until(f"button({json.dumps(text)})")
        self.do(f"button({json.dumps(text)}).click()")

    def write(self, label: str, text: str) -> None:
        self.until(f"labelled({json.dumps(label)})")
        self.do(f"write(labelled({json.dumps(label)}), {json.dumps(text)})")

    def upload(self, name: str, text: str) -> None:
        """Choose a file in the field for uploads."""
        self.do(
            f"const files = new DataTransfer(); files.items.add(new File([{json.dumps(text)}], {json.dumps(name)}));"
            "const upload = document.getElementById('upload'); upload.files = files.files;"
            "upload.dispatchEvent(new Event('change'));"
        )

    def until_state(self, *states: str) -> None:
        """Wait until the run that is shown is in one of these states."""
        self.until(" || ".join(f"document.querySelector('h1 ~ .row .badge.{state}')" for state in states))

    def agree(self) -> None:
        """Press the last button of the dialog."""
        self.until("document.querySelector('dialog[open] .danger')")
        self.do("document.querySelector('dialog[open] .danger').click()")

    @property
    def run_id(self) -> str:
        return str(self.until("new URLSearchParams(location.hash.split('?')[1]).get('id')"))

    @property
    def text(self) -> str:
        return str(self.driver.find_element("id", "main").text)

    def look(self, width: int = 1280, language: str = "en", theme: str = "light") -> None:
        """The size of the window; language and theme from the next page on."""
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        kept = json.dumps({"language": language, "theme": theme})
        self.driver.execute_script(f"localStorage.setItem('npukit-look', {json.dumps(kept)})")

    def keep(self, name: str, part: str = "h1") -> None:
        """With NPUKIT_SCREENSHOTS=FOLDER, keep pictures of what is shown, light and dark."""
        if not PICTURES:
            return
        from PIL import Image

        self.do(f"document.querySelector({json.dumps(part)}).scrollIntoView({{block: 'center'}})")
        for theme in ("", "-dark"):
            time.sleep(1)
            picture = Image.open(io.BytesIO(self.driver.get_screenshot_as_png())).convert("RGB")
            small = picture.quantize(COLOURS, Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)
            small.save(Path(PICTURES) / f"studio-{name}{theme}.png", optimize=True)
            self.do("document.getElementById('theme').click()")
