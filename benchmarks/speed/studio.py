"""The studio with 300 runs of 100,000 logged steps each: first view, a curve, and the server's memory.

python -m benchmarks studio [--runs 300] [--steps 100000] [--axe axe.min.js]

Ten logs are written and linked under the other names, so that the disk holds 10 and not 300 of them; the server reads
each name by itself. Times are those of a browser: from opening the address until the list is drawn, and from choosing a
run in it until its curves are; beside them is the processor time of the server, which other jobs do not lengthen. With
--axe (the file of the npm package axe-core), every page is checked for
accessibility, light and dark.
"""

from __future__ import annotations

import json
import math
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

PAGES = ("machine", "port", "data", "train", "runs", "chat", "eval", "export", "precision", "performance", "run")


def main(runs: int = 300, steps: int = 100_000, axe: Path | None = None) -> None:
    with tempfile.TemporaryDirectory() as folder:
        write_runs(Path(folder), runs, steps)
        command = [sys.executable, "-m", "npukit", "studio", folder, "--port", "0"]
        server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert server.stdout
        address = server.stdout.readline().split()[-1]
        try:
            measure(address, server.pid, runs, axe)
        finally:
            server.terminate()
            server.wait()


def write_runs(folder: Path, runs: int, steps: int) -> None:
    for number in range(runs):
        run = folder / "runs" / f"run-{number:03}"
        run.mkdir(parents=True)
        (run / "npukit.yaml").write_text(f"model: {{path: m}}\ntraining: {{learning_rate: {number + 1}.0e-5}}\n")
        if number >= 10:
            os.link(folder / "runs" / f"run-{number % 10:03}" / "log.jsonl", run / "log.jsonl")
            continue
        noise = random.Random(number)
        with (run / "log.jsonl").open("w") as log:
            for step in range(1, steps + 1):
                loss = 3 * math.exp(-step / steps * 3) + noise.gauss(0.5, 0.05)
                row = {"step": step, "epoch": step / steps, "loss": loss, "grad_norm": noise.random() + 0.5}
                row |= {"learning_rate": 1e-4 * (1 - step / steps), "items_per_second": 5000 + noise.gauss(0, 50)}
                row |= {
                    "memory_gib": 40.0,
                    "data_wait": 0.01,
                    "seconds": step * 0.5,
                    "seconds_left": 0.5 * (steps - step),
                }
                log.write(json.dumps(row) + "\n")


def measure(address: str, pid: int, runs: int, axe: Path | None) -> None:
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or ""
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--window-size=1280,900"):
        options.add_argument(argument)
    browser = webdriver.Chrome(options=options, service=webdriver.ChromeService(shutil.which("chromedriver")))
    browser.get(address)
    origin = address.partition("?")[0]
    memory = [resident(pid)]
    listed = f"document.querySelectorAll('tbody tr').length === {min(runs, 50)}"  # a page has 50
    for name in ("first view", "again"):
        used = processor(pid)
        seconds = timed(browser, f"{origin}#/runs", listed)
        print(f"{name} of {runs} runs: {seconds:.2f} s (server: {processor(pid) - used:.2f} s of processor time)")
    times, work = [], []
    for number in range(min(runs, 40)):
        timed(browser, "#/runs", listed)
        used = processor(pid)
        run = f"#/run?id=folder%3Aruns%2Frun-{number * 7 % runs:03}"
        times.append(timed(browser, run, "document.querySelector('.chart polyline')"))
        work.append(processor(pid) - used)
        memory.append(resident(pid))
    times.sort()
    work.sort()
    half = len(times) // 2
    print(f"a curve that nobody has looked at: median {times[half]:.2f} s, slowest {times[-1]:.2f} s of {len(times)}")
    print(f"  (server: median {work[half]:.2f} s of processor time, most {work[-1]:.2f} s)")
    later = f"{memory[half]:.0f} after {half} curves, {memory[-1]:.0f} after {len(times)}"
    print(f"the server's memory: {memory[0]:.0f} MiB, {later}")
    if axe:
        for theme in ("light", "dark"):
            check_accessibility(browser, origin, axe.read_text(), theme)
    browser.quit()


def timed(browser: Any, address: str, there: str) -> float:
    """Seconds until it is there: after a page was opened anew, or after a click that leads to #ADDRESS."""
    if not address.startswith("#"):
        browser.get("about:blank")
    began = time.perf_counter()
    if address.startswith("#"):
        browser.execute_script("location.hash = arguments[0]", address)
    else:
        browser.get(address)
    while not browser.execute_script(f"return !!({there})"):
        if time.perf_counter() - began > 60:
            raise SystemExit(
                f"{address} was not drawn within a minute: {browser.execute_script('return document.body.innerText')}"
            )
        time.sleep(0.01)
    return time.perf_counter() - began


def resident(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) / 1024


def processor(pid: int) -> float:
    """Seconds of processor time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def check_accessibility(browser: Any, origin: str, axe: str, theme: str) -> None:
    look = json.dumps({"language": "en", "theme": theme})
    browser.execute_script(f"localStorage.setItem('npukit-look', {json.dumps(look)})")
    for page in PAGES:
        browser.get("about:blank")
        browser.get(f"{origin}#/{page}" + ("?id=folder%3Aruns%2Frun-001" if page == "run" else ""))
        time.sleep(3)
        browser.execute_script(axe)  # by the driver, which the page's policy does not concern
        report = browser.execute_async_script("axe.run().then(arguments[arguments.length - 1])")
        worst = [violation for violation in report["violations"] if violation["impact"] in ("serious", "critical")]
        for violation in worst:
            nodes = "; ".join(node["html"][:120] for node in violation["nodes"][:3])
            print(f"  {page} ({theme}): {violation['impact']}: {violation['id']}: {nodes}")
        print(f"axe-core, {page}, {theme}: {len(worst)} serious, {len(report['violations'])} in all")
