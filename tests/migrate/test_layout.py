"""Changed statements keep to the layout of the project: its formatter, its width, its quotation marks."""

from __future__ import annotations

from pathlib import Path

import pytest

from npukit.migrate.layout import Formatter, configured_formatter
from npukit.migrate.migration import migrate

LONG = "if not weights.is_cuda and weights.dtype == torch.float16:\n    run(1)\n"
CONDITION = 'weights.device.type not in ("cuda", "npu")\n    and weights.dtype == torch.float16'
BROKEN = f"if (\n    {CONDITION}\n):\n    run(1)\n"


def migrated(folder: Path, text: str) -> str:
    (folder / "a.py").write_text(f"import torch\n\n{text}")
    return migrate(folder).changes[0].after


@pytest.mark.parametrize(
    ("name", "settings", "formatter"),
    [
        ("pyproject.toml", "[tool.black]\nline-length = 66\n", Formatter("black", 66)),
        ("pyproject.toml", "[tool.ruff]\nline-length = 66\n", Formatter("ruff", 66)),
        ("ruff.toml", "line-length = 66\nformat.quote-style = 'single'\n", Formatter("ruff", 66, quote="'")),
        (".pre-commit-config.yaml", "- id: black\n  args: ['-l=66', '-l', '66']\n", Formatter("black", 66)),
        ("pyproject.toml", "[tool.black]\nskip-magic-trailing-comma = true\n", Formatter("black", 88, False)),
        ("setup.cfg", "[yapf]\ncolumn_limit = 66\n", Formatter("yapf", 66)),
        (".flake8", "[flake8]\nmax-line-length = 66\n", Formatter("", 66)),
        ("pyproject.toml", "[tool.black\n", None),
    ],
)
def test_a_project_says_how_it_is_formatted(
    tmp_path: Path, name: str, settings: str, formatter: Formatter | None
) -> None:
    package = tmp_path / "package"
    package.mkdir()
    (tmp_path / name).write_text(settings)
    assert configured_formatter(package, tmp_path) == formatter


@pytest.mark.parametrize("settings", ["[tool.black]\nline-length = 66\n", "[tool.ruff]\nline-length = 66\n"])
def test_the_formatter_lays_out_what_changed(tmp_path: Path, settings: str) -> None:
    (tmp_path / "pyproject.toml").write_text(settings)
    assert migrated(tmp_path, LONG).endswith(BROKEN)


def test_what_the_formatter_had_not_laid_out_stays(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.black]\nline-length = 66\n")
    untidy = "a = [ 1,2 ]\n"
    own = "b = f( weights.is_cuda,2 )\n"
    after = migrated(tmp_path, untidy + LONG + own)
    assert after == f'import torch\n\n{untidy}{BROKEN}b = f( weights.device.type in ("cuda", "npu"),2 )\n'


def test_a_line_that_the_formatter_had_not_laid_out_is_broken_once_it_outgrows_the_file(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.black]\nline-length = 66\n")
    line = f"add( '--name', help = '{'x' * 50}', device='cuda' if torch.cuda.is_available() else 'cpu' )"
    after = migrated(tmp_path, line + "\n").split("\n")
    assert after[2] == "add(" and after[-2] == ")" and " ".join(after[3:-2]).count("help = ") == 1


def test_nothing_of_the_project_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.black]\nline-length = 66\n")
    for name in ("black", "ruff", "yapf", "tomllib"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('run')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert migrated(tmp_path, LONG).endswith(BROKEN)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (LONG, BROKEN.replace("\n    and", " and")),
        (
            "small = weights.is_cuda and g(weights) or weights.is_sparse\n",
            'small = (\n    weights.device.type in ("cuda", "npu") and g(weights) or weights.is_sparse\n)\n',
        ),
        (
            "small = function_of(weights.is_cuda, first=1, second=2)\n",
            'small = function_of(\n    weights.device.type in ("cuda", "npu"), first=1, second=2\n)\n',
        ),
        (
            "x.cuda()\nweights = torch.randn((first, second, 3), dtype=torch.half).cuda()\n",
            "weights = torch.randn(\n    (first, second, 3), dtype=torch.half\n).to(DEVICE)\n",
        ),
        (  # a choice is not broken inside what it ends with
            "self.device = 'cuda:{}'.format(self.number_of_card)\n",
            "self.device = (\n    'npu:{}'.format(self.number_of_card) if hasattr(torch, 'npu')"
            "\n    else 'cuda:{}'.format(self.number_of_card)\n)\n",
        ),
        (
            "small = [f(x, x, x, x, x, x) for x in g(weights.is_cuda)]\n",
            'small = [\n    f(x, x, x, x, x, x)\n    for x in g(weights.device.type in ("cuda", "npu"))\n]\n',
        ),
        (  # which was as long before
            "s = 'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa'; t = weights.is_cuda  # x\n",
            "; t = weights.device.type in ('cuda', 'npu')  # x\n",
        ),
    ],
)
def test_without_a_formatter_a_line_is_broken_once(tmp_path: Path, before: str, after: str) -> None:
    (tmp_path / "setup.cfg").write_text("[flake8]\nmax-line-length = 66\n")
    assert migrated(tmp_path, before).endswith(after)


def test_yapf_is_run_where_it_is_installed(tmp_path: Path) -> None:
    pytest.importorskip("yapf")
    (tmp_path / "setup.cfg").write_text("[yapf]\nbased_on_style = pep8\ncolumn_limit = 60\n")
    assert 'if (weights.device.type not in ("cuda", "npu")\n        and weights' in migrated(tmp_path, LONG)


def test_lines_stay_whole_in_a_file_that_keeps_to_no_width(tmp_path: Path) -> None:
    long = f"x = f({'a, ' * 50})\n"
    line = f"y = g({'b, ' * 30} c.is_cuda)\n"
    assert f"y = g({'b, ' * 30} c.device.type in (" in migrated(tmp_path, long * 3 + line)


@pytest.mark.parametrize(
    ("text", "after"),
    [
        ('a = b[\'c\'].is_cuda\nb = "c", "d"\n', "b['c'].device.type in ('cuda', 'npu')"),
        ("a = b.is_cuda  # isn't\nc = \"d\"  # it's\n", 'b.device.type in ("cuda", "npu")'),
        ('"""It is."""\na = b.is_cuda\nc = \'d\'\n', "b.device.type in ('cuda', 'npu')"),
    ],
)
def test_strings_get_the_quotation_marks_of_those_around_them(tmp_path: Path, text: str, after: str) -> None:
    assert after in migrated(tmp_path, text)
