"""The site of `make docs`, in a browser without a network.

    python -m benchmarks site [--site FOLDER] [--pictures FOLDER]

Opens the built site from its folder in a headless Chromium that can reach no host, searches in both languages and
looks at what the first result is, follows the switch of languages, and checks every link and anchor of every page, its
Markdown copy and its line in llms.txt. --pictures keeps screenshots of some pages.
"""

from __future__ import annotations

import json
import shutil
import sys
import time
from html.parser import HTMLParser
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import unquote

from benchmarks import ROOT

SEARCHES = {  # language, what is typed, and the page that has to be the first result
    ("en", "507018"): "reference/errors.html",
    ("en", "nccl"): "reference/rules/NPK120.html",
    ("en", "gradient overflow"): "guides/watch-a-run.html",
    ("en", "out of memory"): "reference/advice/NPK840.html",
    ("en", "NPUKIT_CACHE"): "reference/variables.html",
    ("en", "Qwen3-30B-A3B"): "reference/models.html",
    ("zh", "507018"): "reference/errors.html",
    ("zh", "nccl"): "reference/rules/NPK120.html",
    ("zh", "梯度溢出"): "guides/watch-a-run.html",
    ("zh", "显存不足"): "guides/does-it-fit.html",
    ("zh", "通信域"): "glossary.html",
}
PICTURES = (
    "index.html", "guides/install-npu.html", "guides/fine-tune.html", "reference/cli.html", "reference/errors.html",
    "reference/rules/NPK401.html", "zh/index.html", "zh/guides/loss-differs.html", "results/training.html",
)  # fmt: skip
FIRST = "document.querySelector('.md-search-result__item a')"


class Page(HTMLParser):
    """The links and the anchors of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.links += [value for name in ("href", "src") if (value := values.get(name))]
        self.anchors |= {value for name in ("id", "name") if (value := values.get(name))}


def broken_links(site: Path) -> tuple[int, list[str]]:
    """The number of links within the site, and those that lead nowhere."""
    pages = {file: Page(file.read_text(encoding="utf-8")) for file in site.rglob("*.html") if file.name != "404.html"}
    count, broken = 0, []
    for file, page in pages.items():
        for link in page.links:
            if link.startswith(("http:", "https:", "data:", "javascript:", "mailto:")):
                continue
            count += 1
            path, _, anchor = unquote(link).partition("#")
            target = (file.parent / path.partition("?")[0]).resolve() if path else file
            missing = anchor and target in pages and anchor not in pages[target].anchors
            if not target.exists() or missing:
                broken.append(f"{file.relative_to(site)}: {link}")
    return count, broken


def without_markdown(site: Path) -> list[str]:
    """The pages that have no Markdown beside them or no line in llms.txt."""
    lacking = []
    for folder in (site, site / "zh"):
        listed = (folder / "llms.txt").read_text(encoding="utf-8")
        for file in folder.rglob("*.html"):
            name = file.relative_to(folder).with_suffix(".md").as_posix()
            name = name.replace("index.md", "README.md")
            if file.name != "404.html" and not name.startswith("zh/"):
                lacking += [] if (folder / name).is_file() and f"({name})" in listed else [f"{folder.name}/{name}"]
    return lacking


def chromium() -> Any:
    """A headless browser for which no host has an address."""
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or ""
    options.set_capability("goog:loggingPrefs", {"performance": "ALL", "browser": "ALL"})
    nowhere = "--host-resolver-rules=MAP * ~NOTFOUND"
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--window-size=1280,900", nowhere):
        options.add_argument(argument)
    return webdriver.Chrome(options=options, service=webdriver.ChromeService(shutil.which("chromedriver")))


def until(driver: Any, condition: str, seconds: float = 60) -> Any:
    """The value of an expression in the page, as soon as it has one; None if it never does."""
    end = time.monotonic() + seconds
    while not (value := driver.execute_script(f"return {condition}")) and time.monotonic() < end:
        time.sleep(0.1)
    return value


def search(driver: Any, home: str, words: str) -> str:
    """The page that is the first result, from the root of the language."""
    driver.get("about:blank")
    driver.get(home)
    until(driver, "document.querySelector('.md-search__input')")
    driver.execute_script(
        "const input = document.querySelector('.md-search__input'); input.focus();"
        f"input.value = {json.dumps(words)}; input.dispatchEvent(new KeyboardEvent('keyup', {{bubbles: true}}));"
    )
    link = until(driver, f"{FIRST}?.href") or ""
    return unquote(str(link)).removeprefix(home.removesuffix("index.html")).partition("?")[0].partition("#")[0]


def foreign_requests(driver: Any) -> list[str]:
    """What the browser asked for that is not a file of the site."""
    sent = (json.loads(row["message"])["message"] for row in driver.get_log("performance"))
    urls = {row["params"]["request"]["url"] for row in sent if row["method"] == "Network.requestWillBeSent"}
    return sorted(url for url in urls if not url.startswith(("file:", "data:", "blob:", "about:", "chrome")))


def keep_pictures(driver: Any, site: Path, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in PICTURES:
        driver.get((site / name).as_uri())
        time.sleep(0.5)
        driver.save_screenshot(str(folder / f"{name.removesuffix('.html').replace('/', '-')}.png"))


def in_a_browser(site: Path, pictures: Path | None) -> list[str]:
    """What went wrong."""
    wrong = []
    driver = chromium()
    try:
        for (language, words), wanted in SEARCHES.items():
            home = (site / ("zh" if language == "zh" else "") / "index.html").as_uri()
            first = search(driver, home, words)
            print(f"{language} {words}: {first or 'nothing'}")
            wrong += [] if first == wanted else [f"{language} {words}: {first or 'nothing'}, not {wanted}"]
        driver.get((site / "guides" / "slow.html").as_uri())
        driver.get(driver.execute_script("return document.querySelector('a[hreflang=zh]').href"))
        chinese = driver.execute_script("return document.documentElement.lang") == "zh"
        wrong += [] if chinese and "guides/slow" in driver.current_url else ["the switch leaves the page"]
        if pictures:
            keep_pictures(driver, site, pictures)
        severe = [row["message"] for row in driver.get_log("browser") if row["level"] == "SEVERE"]
        errors = [message for message in severe if "sitemap.xml" not in message]  # which only a server can send
        return wrong + errors + [f"asked for {url}" for url in foreign_requests(driver)]
    finally:
        driver.quit()


def main(
    site: Annotated[Path, "what make docs has written"] = ROOT / "site",
    pictures: Annotated[Path | None, "where screenshots are kept"] = None,
) -> None:
    site = site.resolve()
    if not (site / "index.html").is_file():
        sys.exit(f"{site} has no index.html: run make docs first")
    links, broken = broken_links(site)
    lacking = without_markdown(site)
    wrong = in_a_browser(site, pictures)
    print(f"{sum(1 for _ in site.rglob('*.html'))} pages, {links} links, {len(broken)} of them broken")
    for problem in (*broken, *(f"{page}: no Markdown or not in llms.txt" for page in lacking), *wrong):
        print(f"  {problem}")
    sys.exit(bool(broken or lacking or wrong))
