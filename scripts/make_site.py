"""Build the documentation as a site that opens from a folder: `python scripts/make_site.py [FOLDER]`, by default site/.

Pages are staged once for each language: page.zh.md takes the place of page.md, and the results of benchmarks become
part of the site. Links to files of the repository, which the site does not have, become plain text. Beside every page
lies its Markdown, and llms.txt lists them all. `--builder zensical` builds with Zensical instead of MkDocs.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[1]
CHINESE = {
    "Home": "首页",
    "Guides": "指南",
    "Concepts": "原理",
    "Reference": "参考",
    "Results": "实测结果",
    "Rules": "规则",
    "Findings": "检查结果",
    "Advice": "优化建议",
    "Install": "安装",
    "Port": "迁移",
    "Train": "训练",
    "Use": "使用模型",
    "Find out why": "定位问题",
}
SLUGS = "!!python/object/apply:pymdownx.slugs.slugify {kwds: {case: lower}}"  # keeps Chinese, as GitHub does
# Long tables, which the search would list last; a word that the glossary explains is looked for there.
BOOSTS = {"reference/errors.md": 20, "reference/variables.md": 20, "glossary.md": 40}
TERM = re.compile("[\u4e00-\u9fff]{2,}")
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s#]+)(#[^)\s]*)?\)")


def main() -> None:
    """Build both languages, and fail on a link that leads nowhere."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, default=ROOT / "site")
    parser.add_argument("--builder", choices=["mkdocs", "zensical"], default="mkdocs")
    options = parser.parse_args()
    site = options.folder.absolute()
    shutil.rmtree(site, ignore_errors=True)
    for language, folder in (("en", site), ("zh", site / "zh")):
        with tempfile.TemporaryDirectory() as work:
            pages = stage(language, Path(work) / "docs")
            shutil.copytree(Path(work) / "docs", folder)
            (folder / "llms.txt").write_text(contents(folder, pages), encoding="utf-8")
            build(options.builder, language, Path(work), folder)
    print(f"{site / 'index.html'}: {sum(1 for _ in site.rglob('*.html'))} pages")


def build(builder: str, language: str, work: Path, folder: Path) -> None:
    """Build the pages that are staged in `work`, with switches of language that stay on the page."""
    config = work / "mkdocs.yml"
    text = yaml.safe_dump(settings(language), allow_unicode=True)
    config.write_text(text.replace("SLUGS", SLUGS), encoding="utf-8")
    for name, boost in BOOSTS.items():
        page = work / "docs" / name
        text = page.read_text(encoding="utf-8")
        page.write_text(f"---\nsearch:\n  boost: {boost}\n---\n{text}", encoding="utf-8")
    terms = TERM.findall((work / "docs" / "glossary.md").read_text(encoding="utf-8"))
    (work / "terms.txt").write_text("\n".join(terms), encoding="utf-8")
    command = [sys.executable, "-m", builder, "build", "--strict", "-f", str(config)]
    command += ["--quiet"] if builder == "mkdocs" else []
    subprocess.run(command, check=True, cwd=work, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"})
    for page in (work / "site").rglob("*.html"):
        name = page.relative_to(work / "site").as_posix()
        text = page.read_text(encoding="utf-8")
        page.write_text(re.sub(r'index\.html(" hreflang=)', rf"{name}\1", text), encoding="utf-8")
    shutil.copytree(work / "site", folder, dirs_exist_ok=True)


def stage(language: str, folder: Path) -> list[str]:
    """Copy the pages of a language; returns their paths."""
    shutil.copytree(ROOT / "docs", folder)
    shutil.copytree(ROOT / "benchmarks" / "results", folder / "results")
    for page in folder.rglob("*.zh.md"):
        if language == "zh":
            page.replace(page.with_suffix("").with_suffix(".md"))
        else:
            page.unlink()
    pages = sorted(str(page.relative_to(folder)) for page in folder.rglob("*.md"))
    for page in pages:
        text = (folder / page).read_text(encoding="utf-8")
        (folder / page).write_text(LINK.sub(partial(staged_link, page=page, folder=folder), text), encoding="utf-8")
    return pages


def staged_link(link: re.Match[str], page: str, folder: Path) -> str:
    """The link as it is in the site; its text alone where it leads out of the site."""
    image, text, target, anchor = link.groups()
    if target.startswith("http"):
        return link[0]
    target = re.sub(r"^(?:\.\./)+benchmarks/results/", f"{'../' * page.count('/')}results/", target)
    target = re.sub(r"^(?:\.\./)+docs/", "../" * page.count("/"), target)
    target = target.replace(".zh.md", ".md")
    inside = (folder / page).parent.joinpath(target).resolve()
    if not inside.is_relative_to(folder.resolve()) or not inside.exists():
        return text
    return f"{image}[{text}]({target}{anchor or ''})"


def settings(language: str) -> dict[str, Any]:
    """mkdocs.yml for one language."""
    config: dict[str, Any] = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    results = sorted(f"results/{page.name}" for page in (ROOT / "benchmarks" / "results").glob("*.md"))
    config["nav"].append({"Results": results})
    reference = next(part["Reference"] for part in config["nav"] if "Reference" in part)
    for name in ("Rules", "Findings", "Advice"):
        index = f"reference/{name.lower()}/README.md"
        codes = sorted(page.name for page in (ROOT / "docs" / index).parent.glob("NPK???.md"))
        reference[reference.index(index)] = {name: [index, *(index.replace("README.md", page) for page in codes)]}
    config["plugins"][0]["search"]["jieba_dict_user"] = "terms.txt"
    config["markdown_extensions"].append({"toc": {"permalink": True, "slugify": "SLUGS"}})
    if language == "zh":
        config["theme"]["language"] = "zh"
        config["nav"] = translated(config["nav"])
        links = {"en": "../index.html", "zh": "index.html"}
        config["extra"]["alternate"] = [{**row, "link": links[row["lang"]]} for row in config["extra"]["alternate"]]
    return config


def translated(nav: Any) -> Any:
    """The navigation with Chinese titles."""
    if isinstance(nav, dict):
        return {CHINESE[title]: translated(below) for title, below in nav.items()}
    return [translated(row) for row in nav] if isinstance(nav, list) else nav


def contents(folder: Path, pages: list[str]) -> str:
    """llms.txt: every page with its title, for programs that read Markdown."""
    titles = {page: (folder / page).read_text("utf-8").partition("\n")[0].lstrip("# ") for page in pages}
    rows = [f"- [{title}]({page})" for page, title in titles.items()]
    head = "# npukit\n\n> Take PyTorch projects from CUDA to Ascend NPUs, and try them on a simulated NPU first.\n\n"
    return head + "\n".join(rows) + "\n"


if __name__ == "__main__":
    main()
