"""The studio in a real browser, from a CUDA project to a chat with what was trained.

All tests share a workspace, a server and a browser, and stand in the order in which a user would go.
NPUKIT_SCREENSHOTS=FOLDER keeps pictures of every page, light and dark.
"""

from __future__ import annotations

import io
import json
import os
import runpy
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PICTURES = os.environ.get("NPUKIT_SCREENSHOTS")
CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
HOSTILE = "<img src=x onerror='document.title=1'>"
YAML = """
model_name_or_path: model
stage: sft
do_train: true
finetuning_type: lora
lora_target: all
dataset: cards
dataset_dir: data
template: qwen
cutoff_len: 128
output_dir: runs/cards
logging_steps: 1
max_steps: 8
save_steps: 8
val_size: 0.1
eval_strategy: steps
eval_steps: 4
per_device_train_batch_size: 2
learning_rate: 5.0e-3
"""
PAGES = ("machine", "port", "data", "train", "runs", "chat", "eval", "export", "precision", "performance")
IN_PAGE = """
const button = (text) => [...document.querySelectorAll('button, .button')].find(each => each.textContent === text);
const labelled = (text) => document.getElementById([...document.querySelectorAll('label')].find(each =>
  each.firstChild.textContent.trim() === text).htmlFor);
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


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A workspace with a CUDA project, the demo's model and data, and names and lines that would be markup."""
    work = tmp_path_factory.mktemp("work")
    shutil.copytree(ROOT / "examples" / "cuda_project", work / "project")
    make = runpy.run_path(str(ROOT / "examples" / "finetune" / "make.py"))
    make["main"].__globals__["sys"].argv[1:], before = [str(work)], sys.argv[1:]
    make["main"]()
    sys.argv[1:] = before
    (work / "data" / "dataset_info.json").write_text('{"cards": {"file_name": "cards.jsonl"}}')
    bad = json.dumps({"instruction": "", "output": HOSTILE})
    rows = [json.dumps({"instruction": HOSTILE, "output": "<script>document.title=2</script>"}), bad]
    (work / "data" / "hostile.jsonl").write_text("\n".join(rows) + "\n")
    run = work / "runs" / "<b onclick=alert(1)>old"
    run.mkdir(parents=True)
    (run / "npukit.yaml").write_text(f'model: {{path: model}}\ntraining: {{output: "{HOSTILE}"}}\n')
    (run / "log.jsonl").write_text("".join(f'{{"step": {n}, "loss": {3 - n / 50}}}\n' for n in range(1, 100)))
    return work


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Server]:
    made = Server(folder)
    yield made
    made.kill()
    for file in (folder / ".npukit/studio/runs").glob("*/process.json"):  # chats go on without a server
        try:
            os.killpg(json.loads(file.read_text())["pid"], signal.SIGKILL)
        except ProcessLookupError:
            continue


@pytest.fixture(scope="module")
def browser(server: Server) -> Iterator[Any]:
    webdriver = pytest.importorskip("selenium.webdriver")
    if not CHROMIUM or not DRIVER:
        pytest.skip("no Chromium with its driver here")
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    options.set_capability("goog:loggingPrefs", {"performance": "ALL", "browser": "ALL"})
    for each in ("--headless=new", "--no-sandbox", "--disable-gpu", "--window-size=1280,900", "--hide-scrollbars"):
        options.add_argument(each)
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    driver.get(server.address)
    yield driver
    driver.quit()


def until(browser: Any, script: str) -> Any:
    while not (found := browser.execute_script(IN_PAGE + script)):
        time.sleep(0.1)
    return found


def act(browser: Any, script: str) -> None:
    browser.execute_script(IN_PAGE + script)


def show(browser: Any, server: Server, page: str) -> None:
    browser.get("about:blank")
    browser.get(f"{server.origin}#/{page}")
    until(browser, "return !!document.querySelector('.page')")


def state_of(folder: Path, name: str) -> Callable[[], str]:
    from npukit.studio.runs import Runs

    runs = Runs(folder / ".npukit/studio")
    return lambda: runs.find(name).state.value


def run_id(browser: Any) -> str:
    return str(until(browser, "return new URLSearchParams(location.hash.split('?')[1]).get('id')"))


def test_a_browser_without_the_token_is_shown_nothing(browser: Any, server: Server) -> None:
    assert (
        "token" not in browser.current_url and until(browser, "return document.querySelectorAll('nav a').length") == 10
    )
    browser.delete_all_cookies()
    browser.get(server.origin)
    assert not browser.execute_script("return document.querySelector('nav')")
    browser.get(server.address)


def test_a_project_is_analysed_migrated_and_verified(browser: Any, server: Server, folder: Path) -> None:
    show(browser, server, "port")
    act(browser, "write(labelled('Project folder'), 'project'); button('Analyse').click();")
    until(browser, "return document.querySelectorAll('details.finding').length > 10")
    act(browser, "write(labelled('Rule'), 'NPK120')")
    until(browser, "return document.querySelectorAll('details.finding').length === 1")
    act(browser, "button('See the migration').click()")
    until(browser, "return document.querySelectorAll('.hunk').length > 5")
    keep(browser, "studio-migration")
    # One change is dropped: that of the shell script.
    act(browser, "[...document.querySelectorAll('.file')].at(-1).querySelector('.hunk input').click()")
    act(browser, "write(labelled('Write a migrated copy to'), 'migrated'); button('Write the copy').click()")
    until(browser, "return location.hash.includes('step=verify') && button('Run both and compare')")
    assert (folder / "migrated/train.sh").read_text() == (folder / "project/train.sh").read_text()
    assert ".cuda(" not in (folder / "migrated/train.py").read_text()
    act(browser, "write(labelled('Command that trains'), 'python train.py --steps 4');")
    act(browser, "button('Run both and compare').click()")
    until(browser, "return document.querySelector('.command code')?.textContent.startsWith('npukit verify project')")


def test_a_training_goes_on_without_page_and_server(browser: Any, server: Server, folder: Path) -> None:
    show(browser, server, "train")
    until(browser, "return document.getElementById('upload') && button('Start training')")
    act(
        browser,
        f"const files = new DataTransfer(); files.items.add(new File([{json.dumps(YAML)}], 'sft.yaml'));"
        "const upload = document.getElementById('upload'); upload.files = files.files;"
        "upload.dispatchEvent(new Event('change'));",
    )
    until(browser, "return document.querySelector('.note li') && labelled('Adapter rank')")
    assert "LLaMA-Factory" in browser.find_element("css selector", ".note").text
    act(browser, "write(labelled('Device'), 'sim'); write(labelled('Count'), '2');")
    until(browser, "return document.querySelector('.plan .badge.finished')")  # it fits
    act(browser, "button('Start training').click()")
    name = run_id(browser)
    until(browser, "return document.querySelector('.chart polyline')")

    browser.get("about:blank")
    server.kill()
    log = folder / "runs/cards/log.jsonl"
    before = log.read_text().count("\n")
    while log.read_text().count("\n") <= before:
        time.sleep(0.1)
    server.start(int(server.origin.rpartition(":")[2].strip("/")))
    show(browser, server, f"run?id={name}")
    until(browser, "return document.querySelector('h1 ~ .row .badge.finished')")
    assert state_of(folder, name)() == "finished"
    lines = until(browser, "return document.querySelectorAll('.legend span').length")
    assert lines == 2, "training and evaluation loss"
    assert until(browser, "return [...document.querySelectorAll('.tabs button')].map(each => each.textContent)") == [
        "Output",
        "Rank 0",
        "Rank 1",
    ]
    keep(browser, "studio-run")
    act(browser, "document.getElementById('theme').click()")
    keep(browser, "studio-run-dark")
    act(browser, "document.getElementById('theme').click()")


def test_the_verification_shows_both_curves(browser: Any, server: Server) -> None:
    show(browser, server, "port?path=project&step=verify")
    until(browser, "return document.querySelectorAll('.chart polyline').length === 2")
    assert "Verified" in browser.find_element("id", "main").text


def test_chat_with_the_run_and_export_it(browser: Any, server: Server, folder: Path) -> None:
    show(browser, server, "chat?model=runs/cards")
    act(browser, "write(labelled('Device'), 'cpu'); button('Load a model').click()")
    until(browser, "return document.querySelector('.frame-head b')")

    show(browser, server, "export?model=runs/cards")  # while the model is loaded
    act(browser, "write(labelled('Output'), 'exported'); button('Start').click()")
    name = run_id(browser)
    until(browser, "return document.querySelector('h1 ~ .row .badge.finished') && document.querySelector('dl.pairs')")
    assert (folder / "exported/config.json").is_file() and state_of(folder, name)() == "finished"

    show(browser, server, "chat")
    until(browser, "return document.querySelector('iframe')")
    browser.switch_to.frame(browser.find_element("css selector", "iframe"))
    until(browser, "return document.querySelectorAll('#model option').length && document.getElementById('model').value")
    browser.find_element("id", "prompt").send_keys("How much memory does a 910B3 have?\n")
    until(browser, "return document.querySelector('.figures')?.textContent.includes('tokens/s')")
    assert browser.find_element("css selector", ".assistant .prose").text
    browser.switch_to.default_content()
    keep(browser, "studio-chat")


def test_text_of_files_is_never_markup(browser: Any, server: Server) -> None:
    show(browser, server, "data?model=model&data=data/hostile.jsonl")
    until(browser, "return document.querySelector('article.tokens')")
    assert until(browser, "return document.querySelectorAll('.token.counts').length > 3")
    text = browser.find_element("id", "main").text
    assert HOSTILE in text and "data/hostile.jsonl, line 2" in text
    show(browser, server, "runs")
    until(browser, "return document.querySelectorAll('tbody tr').length >= 5")
    assert "<b onclick=alert(1)>old" in browser.find_element("css selector", "tbody").text
    act(browser, "[...document.querySelectorAll('tbody a')].find(each => each.textContent.includes('<b')).click()")
    until(browser, "return document.querySelector('.chart polyline')")
    assert not browser.execute_script(
        "return document.querySelectorAll('main img, main b[onclick], main script').length"
    )
    assert browser.title.endswith("npukit studio")


def test_every_page_in_both_languages_on_both_widths(browser: Any, server: Server) -> None:
    for width, language, theme in ((1280, "en", "light"), (390, "zh", "dark")):
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        look = json.dumps({"language": language, "theme": theme})
        browser.execute_script(f"localStorage.setItem('npukit-look', {json.dumps(look)})")
        for page in PAGES:
            show(browser, server, page)
            until(browser, "return !document.querySelector('.working') || document.querySelector('h2')")
            wide = (
                "return [...document.querySelectorAll('#main *')].filter(each => !each.closest('.scroll, pre, iframe')"
            )
            wide += " && each.getBoundingClientRect().right > innerWidth + 1).map(each => each.className)"
            assert browser.execute_script(wide) == [], page
            raw = r"/\b(state|verb|form|group|device|check)_\w+|undefined|NaN|\[object/g"
            assert browser.execute_script(f"return document.body.innerText.match({raw})") is None, page
            keep(browser, f"studio-{page}-{width}-{theme}")


def keep(browser: Any, name: str) -> None:
    """A picture of what is shown, where pictures are wanted."""
    if not PICTURES:
        return
    from PIL import Image

    time.sleep(1.5)
    picture = Image.open(io.BytesIO(browser.get_screenshot_as_png()))
    palette = picture.convert("P", palette=Image.Palette.ADAPTIVE, colors=64)
    palette.save(Path(PICTURES) / f"{name}.png", optimize=True)


def test_nothing_came_from_another_host(browser: Any, server: Server) -> None:
    events = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    asked = [event["params"]["request"]["url"] for event in events if event["method"] == "Network.requestWillBeSent"]
    assert len(asked) > 100 and all(url.startswith((server.origin, "data:", "about:")) for url in asked)
    severe = [each["message"] for each in browser.get_log("browser") if each["level"] == "SEVERE"]
    assert not [each for each in severe if "ERR_CONNECTION_REFUSED" not in each and "401" not in each]
