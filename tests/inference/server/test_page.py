"""The chat page in a real browser, on a server whose model says what the test wants."""

from __future__ import annotations

import contextlib
import json
import shutil
import time
from collections.abc import Iterator
from typing import Any

import pytest

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
HOSTILE = (
    '<img src=x onerror="document.title=1"><script>document.title=2</script>\n\n'
    "[link](javascript:alert(1)) **bold** `<b>code</b>`\n\n```html\n<script>document.title=3</script>\n```\n"
)
LONG = "one two three four five six seven eight nine ten " * 40


def reply(text: str, number: int) -> str:
    return HOSTILE if "hostile" in text else LONG if "long" in text else f"Answer {number}."


@pytest.fixture(scope="module")
def engine(scripted: Any) -> Any:
    return scripted.engine(reply)


@pytest.fixture(scope="module")
def address(scripted: Any, engine: Any) -> str:
    return f"{scripted.serve(engine)}/"


@pytest.fixture
def browser(address: str) -> Iterator[Any]:
    with opened(address) as driver:
        until(driver, "return document.querySelectorAll('#model option').length === 2")
        yield driver


@contextlib.contextmanager
def opened(address: str) -> Iterator[Any]:
    """A browser that shows a page; the test is skipped where there is none."""
    webdriver = pytest.importorskip("selenium.webdriver")
    if not CHROMIUM or not DRIVER:
        pytest.skip("no Chromium with its driver here")
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    options.set_capability("goog:loggingPrefs", {"performance": "ALL", "browser": "ALL"})
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--window-size=1200,900"):
        options.add_argument(argument)
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    try:
        driver.get(address)
        yield driver
    finally:
        driver.quit()


def until(browser: Any, script: str) -> None:
    while not browser.execute_script(script):
        time.sleep(0.05)


def ask(browser: Any, text: str) -> None:
    browser.find_element("id", "prompt").send_keys(text + "\n")


def texts(browser: Any) -> list[str]:
    script = "return [...document.querySelectorAll('.assistant .prose')].map(each => each.textContent)"
    texts_: list[str] = browser.execute_script(script)
    return texts_


IDLE = "return document.getElementById('stop').hidden"


def test_send_stop_regenerate_and_change_the_model(browser: Any, engine: Any) -> None:
    ask(browser, "Hi")
    until(browser, "return document.querySelector('.figures')?.textContent.includes('tokens/s')")
    assert texts(browser) == [f"Answer {len(engine.asked)}."]
    browser.find_element("css selector", ".assistant [title=Regenerate]").click()
    until(browser, "return document.querySelectorAll('.assistant .figures').length === 1")
    until(browser, f"return document.querySelector('.assistant .prose')?.textContent === 'Answer {len(engine.asked)}.'")

    browser.find_element("id", "model").send_keys("second")
    ask(browser, "Something long")
    until(browser, "return document.querySelectorAll('.assistant .prose')[1]?.textContent.length > 20")
    browser.find_element("id", "stop").click()
    until(browser, IDLE)
    assert 20 < len(texts(browser)[1]) < len(LONG)
    while not engine.is_idle:  # the place is free
        time.sleep(0.01)
    sent = [json.loads(body) for body in sent_bodies(browser)]
    assert [request["model"] for request in sent] == ["first", "first", "second"]
    assert [message["role"] for message in sent[2]["messages"]] == ["user", "assistant", "user"]


def test_a_reply_cannot_become_markup(browser: Any) -> None:
    ask(browser, "Be hostile")
    until(browser, "return document.querySelector('.figures')?.textContent.includes('tokens/s')")
    assert browser.title == "npukit"
    inside = browser.find_element("css selector", ".assistant .prose")
    assert not inside.find_elements("css selector", "img, script, a, b, iframe")
    assert "<img src=x" in inside.text and "<b>code</b>" in inside.text
    assert inside.find_element("tag name", "strong").text == "bold"
    assert inside.find_element("css selector", ".code pre").text == "<script>document.title=3</script>"


def test_copying_on_a_page_without_https_works_or_says_that_it_does_not(browser: Any) -> None:
    ask(browser, "Hi")
    until(browser, "return document.querySelector('.figures')?.textContent.includes('tokens/s')")
    browser.execute_script("Object.defineProperty(navigator, 'clipboard', {value: undefined})")
    for allowed, says in (("false", "This browser does not allow copying"), ("true", "Copied")):
        script = f"document.execCommand = () => {{ window.copied = document.activeElement.value; return {allowed}; }}"
        browser.execute_script(script)
        browser.execute_script("document.querySelector('.assistant .actions button').click()")
        until(browser, f"return document.querySelector('.assistant .actions [title^=\"{says}\"]')")
        assert browser.execute_script("return copied") == texts(browser)[0]


def test_settings_language_and_theme_reach_the_request_and_stay(browser: Any) -> None:
    browser.find_element("id", "open-settings").click()
    browser.find_element("id", "system").send_keys("Be brief.")
    browser.find_element("id", "max_tokens").send_keys("50")
    before = browser.execute_script("return document.documentElement.dataset.theme")
    browser.find_element("id", "theme").click()
    browser.find_element("id", "language").click()
    chinese = (
        f"return document.documentElement.lang === 'zh-CN' && document.documentElement.dataset.theme !== '{before}'"
    )
    until(browser, chinese)
    browser.refresh()  # in the same process: what one process stores, another may read a moment later
    until(browser, chinese)
    ask(browser, "Hi")
    until(browser, "return document.querySelector('.figures')?.textContent.includes('词元')")
    sent = json.loads(sent_bodies(browser)[-1])
    assert sent["messages"][0] == {"role": "system", "content": "Be brief."} and sent["max_tokens"] == 50


def test_nothing_comes_from_another_host(browser: Any, address: str) -> None:
    ask(browser, "Be hostile")
    until(browser, "return document.querySelector('.figures')?.textContent.includes('tokens/s')")
    asked = [event["params"]["request"]["url"] for event in events(browser, "Network.requestWillBeSent")]
    assert asked and all(url.startswith((address, "data:")) for url in asked), asked
    assert not [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]


def events(browser: Any, method: str) -> list[Any]:
    all_events = (json.loads(entry["message"])["message"] for entry in browser.get_log("performance"))
    return [event for event in all_events if event["method"] == method]


def sent_bodies(browser: Any) -> list[str]:
    requests = [event["params"]["request"] for event in events(browser, "Network.requestWillBeSent")]
    return [request["postData"] for request in requests if "postData" in request]
