"""Changed lines keep to the layout of the project: its width, its formatter, its quotation marks."""

from __future__ import annotations

from pathlib import Path

import pytest

from npukit.migrate.migration import migrate


def migrated(folder: Path, text: str) -> str:
    (folder / "a.py").write_text(f"import torch\n{text}")
    return migrate(folder).changes[0].after


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (
            "if not weights.is_cuda and weights.dtype == torch.float16:\n    'this'\n",
            "if (\n    weights.device.type not in ('cuda', 'npu')\n    and weights.dtype == torch.float16\n):\n",
        ),
        (
            "small = 'x' in y or weights.is_cuda and not f(weights)\n",
            "small = (\n    'x' in y\n    or weights.device.type in ('cuda', 'npu')\n    and not f(weights)\n)\n",
        ),
        ("x = y = weights.is_cuda and g(weights) or weights.is_sparse\n", "x = y = weights.device.type in ("),
        ("if weights.is_cuda and g(weights) and weights.is_sparse: 'x'\n", "if weights.device.type in ("),
    ],
)
def test_conditions_that_became_too_long_are_broken_at_their_operators(tmp_path: Path, before: str, after: str) -> None:
    (tmp_path / "setup.cfg").write_text("[flake8]\nmax-line-length = 65\n")
    assert after in migrated(tmp_path, before)


def test_what_fits_on_one_line_again_is_joined_where_black_would(tmp_path: Path) -> None:
    call = "    tokens = torch.tensor(\n        words, dtype=torch.int64, device=torch.cuda.current_device()\n    )\n"
    kept = call.replace("words", "words_of_the_line").replace("()\n", "(),\n")
    (tmp_path / "pyproject.toml").write_text("[tool.black]\nline-length = 70\n")
    after = migrated(tmp_path, f"def f(words):\n{call}{kept}")
    assert "    tokens = torch.tensor(words, dtype=torch.int64, device=DEVICE)\n" in after
    assert after.endswith("        words_of_the_line, dtype=torch.int64, device=DEVICE,\n    )\n")


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
