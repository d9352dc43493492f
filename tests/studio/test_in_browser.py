"""The studio in a real browser, from a CUDA project to a chat with what was trained.

All tests share a workspace, a server and a browser, and stand in the order in which a user would go.
NPUKIT_SCREENSHOTS=FOLDER keeps pictures of every page, light and dark.
"""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import torch
from tests.studio.browser import Browser, Server
from tests.studio.conftest import HOSTILE

from npukit.precision import capture
from npukit.studio.wrapper import PROCESS

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
RAW = r"/\b(state|verb|form|group|device|check|task|fit|kind|option|curve|style)_\w+|undefined|NaN|\[object/g"
CUT_OFF = """[...document.querySelectorAll('#main *')].filter(each => !each.closest('.scroll, pre, iframe, .chart')
  && each.getBoundingClientRect().right > innerWidth + 1).map(each => each.className)"""

CHOOSE_ADAPTER = """
const frame = document.querySelector('iframe'), page = frame.contentWindow, ask = page.fetch;
page.asked = [];
page.fetch = (address, options) => { if (options?.body) page.asked.push(options.body); return ask(address, options); };
const model = frame.contentDocument.querySelector('#model');
model.value = 'cards';
model.dispatchEvent(new Event('change'));
"""


def test_a_browser_without_the_token_is_shown_nothing(browser: Browser, server: Server) -> None:
    assert "token" not in browser.driver.current_url
    assert browser.until("document.querySelectorAll('nav a').length") == len(PAGES)
    browser.driver.delete_all_cookies()
    browser.driver.get(server.origin)
    assert not browser.do("return document.querySelector('nav')")
    browser.driver.get(server.address)


def test_a_project_is_analysed_and_migrated(browser: Browser, folder: Path) -> None:
    browser.show("port")
    browser.write("Project folder", "project")
    browser.press("Analyse")
    browser.until("document.querySelectorAll('details.finding').length > 10")
    browser.keep("port")
    browser.write("Rule", "NPK120")
    browser.until("document.querySelectorAll('details.finding').length === 1")
    browser.press("See the migration")
    browser.until("document.querySelectorAll('.hunk').length > 5")
    browser.keep("migration")
    cells = (
        "[...document.querySelectorAll('.hunk-head')].map(each => each.textContent).filter(each => /cell/.test(each))"
    )
    assert len(browser.do(f"return {cells}")) == 2, "a notebook is shown cell by cell"
    # One change is dropped: that of the shell script.
    browser.do("[...document.querySelectorAll('.file')].at(-1).querySelector('.hunk input').click()")
    browser.write("Write a migrated copy to", "migrated")
    browser.press("Write the copy")
    browser.until("location.hash.includes('step=verify') && button('Run both and compare')")
    assert (folder / "migrated/train.sh").read_text() == (folder / "project/train.sh").read_text()
    assert ".cuda(" not in (folder / "migrated/train.py").read_text()
    browser.write("Training command", "python train.py --steps 4")
    browser.press("Run both and compare")
    browser.until("document.querySelector('.working') && document.querySelector('.command code')")
    assert "npukit verify project migrated" in browser.text


def test_what_is_left_to_do_is_ticked_off_and_stays_so(browser: Browser) -> None:
    for is_ticked in (False, True):
        browser.show("port?path=kernels&step=todo")
        assert browser.until("document.querySelector('.todo input')").is_selected() is is_ticked
        if not is_ticked:
            browser.do("document.querySelector('.todo input').click()")
            browser.until("document.querySelector('.todo .done')")


def test_a_training_goes_on_without_page_and_server(browser: Browser, server: Server, folder: Path) -> None:
    browser.show("train")
    browser.until("button('Start training')")
    browser.upload("sft.yaml", YAML)
    browser.until("document.querySelector('.note li') && labelled('Adapter rank')")
    assert "LLaMA-Factory" in browser.driver.find_element("css selector", ".note").text
    browser.write("Device", "sim")
    browser.write("Count", "2")
    browser.until("document.querySelector('.plan .badge.finished')")  # it fits
    browser.keep("train")
    browser.press("Start training")
    name = browser.run_id
    browser.until("document.querySelector('.chart polyline')")

    browser.driver.get("about:blank")
    log = folder / "runs/cards/log.jsonl"
    before = log.read_text().count("\n")
    server.kill()
    while log.read_text().count("\n") <= before:
        time.sleep(0.1)
    (run,) = folder.rglob(f"{name}/{PROCESS}")
    group = json.loads(run.read_text())["pid"]
    os.killpg(group, signal.SIGSTOP)  # or it may have ended before the page shows it
    server.start(int(server.origin.rpartition(":")[2].strip("/")))
    browser.show("machine")
    browser.until("document.querySelectorAll('.slot.taken').length === 2")  # it has two simulated cards
    browser.until("document.querySelector('.verdict')")
    browser.keep("machine")
    os.killpg(group, signal.SIGCONT)
    browser.show(f"run?id={name}")
    browser.until_state("finished")
    lines = browser.until("document.querySelectorAll('.legend span').length")
    assert lines == 2, "training and evaluation loss"
    logs = browser.until("[...document.querySelectorAll('.tabs button')].map(each => each.textContent)")
    assert logs == ["Output", "Rank 0", "Rank 1"]
    browser.keep("run")


def test_a_curve_is_zoomed_with_mouse_and_keys(browser: Browser) -> None:
    from selenium.webdriver import ActionChains, Keys

    steps = (
        "[...document.querySelector('.art').querySelectorAll('text[text-anchor=middle]')].map(each => each.textContent)"
    )
    browser.until("document.querySelector('.art')")
    everything = browser.do(f"return {steps}")
    art = browser.driver.find_element("css selector", ".art")
    ActionChains(browser.driver).drag_and_drop_by_offset(art, 80, 0).perform()
    browser.until("document.querySelectorAll('.all').length > 3")  # all curves show these steps
    assert browser.do(f"return {steps}") != everything
    ActionChains(browser.driver).double_click(browser.driver.find_element("css selector", ".art")).perform()
    browser.until("!document.querySelector('.all')")
    browser.until(f"JSON.stringify({steps}) === {json.dumps(json.dumps(everything, separators=(',', ':')))}")
    browser.do("document.querySelector('.art').focus()")
    for key, is_zoomed in (("+", True), (Keys.ARROW_RIGHT, True), ("0", False)):
        ActionChains(browser.driver).send_keys(key).perform()
        browser.until(f"Boolean(document.querySelector('.all')) === {json.dumps(is_zoomed)}")


def test_the_verification_shows_both_curves(browser: Browser) -> None:
    browser.show("port?path=project&step=verify")
    browser.until("document.querySelectorAll('.chart polyline').length === 2")
    assert "Verified" in browser.text
    browser.keep("verify", ".charts")


def test_a_training_is_stopped_and_resumed(browser: Browser, folder: Path) -> None:
    browser.show("train")
    browser.until("button('Start training')")
    long = YAML.replace("max_steps: 8", "max_steps: 100000").replace("runs/cards", "runs/long")
    browser.upload("sft.yaml", long.replace("eval_steps: 4", "eval_steps: 50000"))
    browser.until("document.querySelector('.note li')")
    browser.write("Device", "cpu")
    browser.write("Count", "1")
    browser.press("Start training")
    browser.until("document.querySelector('.chart polyline')")
    browser.press("Stop and save")
    browser.until_state("stopped")
    assert list((folder / "runs/long").glob("checkpoint-*")), "it was saved"
    browser.do("write(document.querySelector('textarea'), 'too slow')")  # a note

    saved = (folder / "runs/long/log.jsonl").read_text().count("\n")
    browser.press("Resume")
    browser.until_state("running")
    while (folder / "runs/long/log.jsonl").read_text().count("\n") <= saved:
        time.sleep(0.1)
    browser.press("Stop now")
    browser.agree()
    browser.until_state("stopped", "killed")


def test_runs_are_compared_by_curve_and_by_configuration(browser: Browser) -> None:
    browser.show("runs")
    browser.until("document.querySelectorAll('.pick input').length === 3")
    assert "too slow" in browser.text, "notes are shown"
    browser.keep("runs")
    browser.do("[...document.querySelectorAll('.pick input')].slice(0, 2).forEach(each => each.click())")
    browser.press("Compare 2")
    browser.until("document.querySelectorAll('.chart polyline').length > 2")
    assert "training.output" in browser.text
    browser.keep("compare")


def test_deleting_asks(browser: Browser, folder: Path) -> None:
    browser.show("runs")
    browser.until("[...document.querySelectorAll('tbody a')].find(each => each.textContent === 'runs/long')")
    browser.do("[...document.querySelectorAll('tbody a')].find(each => each.textContent === 'runs/long').click()")
    browser.press("Delete")
    browser.until("document.querySelector('dialog[open]')")
    browser.press("Cancel")
    assert (folder / "runs/long").is_dir()
    browser.press("Delete")
    browser.until("document.querySelector('dialog[open] input')")
    browser.do("document.querySelector('dialog input').click()")  # the folder with its checkpoints as well
    browser.agree()
    browser.until("location.hash === '#/runs'")
    assert not (folder / "runs/long").exists()


def test_a_training_that_does_not_fit_is_made_to_fit(browser: Browser) -> None:
    browser.show("train")
    browser.press("Start over")
    browser.upload(
        "big.yaml", "model: {path: Qwen/Qwen2.5-7B}\ndata: {train: data/cards.jsonl}\ntuning: {method: full}\n"
    )
    browser.until("document.querySelector('.plan .badge.failed')")
    browser.press("Find a change that fits")
    browser.press("Apply this change")
    browser.until("document.querySelector('.plan .badge.finished')")
    browser.press("Start over")


def test_the_first_error_is_explained(browser: Browser) -> None:
    browser.show("runs")
    browser.until("[...document.querySelectorAll('tbody a')].find(each => each.textContent === 'runs/failed')")
    browser.do("[...document.querySelectorAll('tbody a')].find(each => each.textContent === 'runs/failed').click()")
    browser.until("document.querySelector('.card.wrong li')")
    assert "EI0006" in browser.text and "<b>rank 1</b>" in browser.text
    browser.press("Rank 1")
    browser.until("document.querySelector('.log').textContent.includes('Traceback')")
    browser.keep("error")


def test_two_models_answer_side_by_side_and_one_is_exported(browser: Browser, folder: Path) -> None:
    browser.show("chat?model=model")
    browser.write("Device", "cpu")
    browser.write("Adapter", "cards=runs/cards")
    browser.press("Load a model")
    browser.until("document.querySelector('.frame-head b')")
    browser.show("chat?model=runs/cards")
    browser.write("Device", "cpu")
    browser.press("Load a model")
    browser.until("document.querySelectorAll('.frame-head b').length === 2")

    browser.show("export?model=runs/cards")  # while the models are loaded
    browser.write("Output", "exported")
    browser.press("Start")
    browser.until_state("finished")
    browser.until("document.querySelector('dl.pairs')")
    assert (folder / "exported/config.json").is_file()
    browser.keep("export")

    browser.show("chat")
    browser.until("document.querySelectorAll('iframe').length === 2")
    choices = "document.querySelector('iframe').contentDocument.querySelectorAll('#model option')"
    names = browser.until(f"{choices}.length > 1 && [...{choices}].map(each => each.value)")
    assert "cards" in names, "the adapter can be chosen by its name"
    both = "[...document.querySelectorAll('iframe')].map(each => each.contentDocument)"
    browser.until(f"{both}.every(each => each.querySelector('#model').value)")
    browser.do("write(document.querySelector('.page > form input'), 'How much memory does a 910B3 have?')")
    browser.press("Send")
    browser.until(f"{both}.every(each => each.querySelector('.figures')?.textContent.includes('tokens/s'))")
    browser.keep("chat")

    browser.do(f"{both}.forEach(each => each.querySelector('#new').click())")  # its long answers fill the context
    browser.until(f"{both}.every(each => !each.querySelector('.figures'))")
    browser.do(CHOOSE_ADAPTER)
    browser.do("write(document.querySelector('.page > form input'), 'And a 910B1?')")
    browser.press("Send")
    browser.until(f"{both}.every(each => each.querySelector('.figures')?.textContent.includes('tokens/s'))")
    asked = browser.do("return document.querySelector('iframe').contentWindow.asked")
    assert [json.loads(body)["model"] for body in asked] == ["cards"]


def test_precision_and_performance_show_their_reports(browser: Browser, folder: Path) -> None:
    for name, scale in (("good", 1.0), ("bad", 1.5)):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 2))
        with capture(folder / name):
            (model(torch.ones(3, 4)) * scale).sum().backward()
    browser.show("precision")
    browser.write("Reference", "good")
    browser.write("To check", "bad")
    browser.press("Start")
    browser.until_state("finished")  # what was found is no failure
    browser.until("document.querySelector('iframe.report')")
    browser.keep("precision")

    browser.show("performance?profiles=runs/cards")
    browser.press("Start")
    browser.until_state("finished")
    browser.until("document.querySelector('iframe.report')")
    browser.keep("performance")


def test_text_of_files_is_never_markup(browser: Browser) -> None:
    browser.show("data?model=model&data=data/hostile.jsonl")
    browser.until("document.querySelector('article.tokens') && document.querySelector('.pictures img')?.naturalWidth")
    assert browser.until("document.querySelectorAll('.token.counts').length > 3")
    assert HOSTILE in browser.text and "data/hostile.jsonl, line 2" in browser.text
    browser.show("runs")
    browser.until("[...document.querySelectorAll('tbody a')].some(each => each.textContent.includes('<b'))")
    assert "<b onclick=alert(1)>old" in browser.text
    browser.do("[...document.querySelectorAll('tbody a')].find(each => each.textContent.includes('<b')).click()")
    browser.until("document.querySelector('.chart polyline')")
    browser.until("document.querySelector('td.answer')")
    browser.press("Step 98")
    browser.until("document.querySelector('.tabs [aria-pressed=true]').textContent === 'Step 98'")
    assert HOSTILE in browser.do("return document.querySelector('td.answer').textContent")
    assert not browser.do("return document.querySelectorAll('main img, main b[onclick], main script').length")
    assert browser.driver.title.endswith("npukit studio")


def test_every_page_in_both_languages_on_both_widths(browser: Browser) -> None:
    browser.show("data?model=model&data=data/cards.jsonl")
    browser.until("document.querySelector('article.tokens')")
    browser.keep("data")
    for width, language, theme in ((390, "zh", "dark"), (1280, "en", "light")):
        browser.look(width, language, theme)
        browser.show("machine")
        for page in PAGES:
            browser.do(f"location.hash = '#/{page}'")
            browser.until("document.querySelector('.page') && !document.querySelector('.page > .working')")
            assert browser.do(f"return {CUT_OFF}") == [], page
            assert browser.do(f"return document.body.innerText.match({RAW})") is None, page


def test_nothing_came_from_another_host(browser: Browser, server: Server) -> None:
    events = [json.loads(entry["message"])["message"] for entry in browser.driver.get_log("performance")]
    asked = [event["params"]["request"]["url"] for event in events if event["method"] == "Network.requestWillBeSent"]
    assert len(asked) > 100 and all(url.startswith((server.origin, "data:", "about:")) for url in asked)
    severe = [entry["message"] for entry in browser.driver.get_log("browser") if entry["level"] == "SEVERE"]
    assert not [message for message in severe if "ERR_CONNECTION_REFUSED" not in message and "401" not in message]
