"""Files keep what no edit names, can be put back, and are never made worse, whatever is in them."""

from __future__ import annotations

import ast
import json
import runpy
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npukit.errors import NpukitError
from npukit.migrate import journal, show
from npukit.migrate.analysis import analyze
from npukit.migrate.goal import Goal, Style
from npukit.migrate.migration import migrate, migrate_document
from npukit.migrate.requirements import allowed_torch
from npukit.migrate.selection import Selection
from npukit.source import Unreadable, read

_MADE = runpy.run_path(str(Path(__file__).with_name("programs.py")))
FUZZED = Path(__file__).parents[1] / "data" / "fuzzed"
CUDA = "import torch\ntorch.zeros(1).cuda()\n"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b"import torch\r\nx.cuda()\r\n", b"import torch\r\nimport torch_npu\r\nx.npu()\r\n"),
        (b"\xef\xbb\xbfimport torch\nx.cuda()", b"\xef\xbb\xbfimport torch\nimport torch_npu\nx.npu()"),
        (b"# -*- coding: latin-1 -*-\nimport torch\ns = '\xe9'; x.cuda()\n",
         b"# -*- coding: latin-1 -*-\nimport torch\nimport torch_npu\ns = '\xe9'; x.npu()\n"),
        ("import torch\né = 'ß'; é.cuda()\n".encode(), "import torch\nimport torch_npu\né = 'ß'; é.npu()\n".encode()),
    ],
)  # fmt: skip
def test_bytes_that_no_edit_names_stay(tmp_path: Path, before: bytes, after: bytes) -> None:
    file = tmp_path / "a.py"
    file.write_bytes(before)
    file.chmod(0o755)
    journal.write_in_place(migrate(tmp_path, Goal(Style.npu)))
    assert file.read_bytes() == after
    assert file.stat().st_mode & 0o777 == 0o755
    assert journal.undo(tmp_path) == [file]
    assert file.read_bytes() == before
    journal.write_in_place(migrate(file, Goal(Style.npu)))
    assert journal.undo(file) == [file]
    assert list(tmp_path.iterdir()) == [file], "nothing is left behind"
    assert file.read_bytes() == before


def test_the_projects_options_hold_for_files_and_rules(tmp_path: Path) -> None:
    (tmp_path / "src" / "old").mkdir(parents=True)
    (tmp_path / "pyproject.toml").write_text('[tool.npukit]\nignore = ["NPK6", "NPK101"]\nexclude = ["src/old"]\n')
    for folder in ("src", "src/old"):
        (tmp_path / folder / "a.py").write_text(CUDA + "torch.cuda.synchronize()\n")
    for start in (tmp_path, tmp_path / "src"):
        result = migrate(start)
        assert [(change.path, len(change.fixed)) for change in result.changes] == [(tmp_path / "src" / "a.py", 1)]
        assert "torch.cuda.synchronize()" in result.changes[0].after


def test_undo_of_a_file_restores_that_file_and_no_other(tmp_path: Path) -> None:
    files = [tmp_path / "src" / name for name in ("a.py", "b.py", "c.py")]
    files[0].parent.mkdir()
    for file in files:
        file.write_text("x.cuda()\n")
    journal.write_in_place(migrate(files[2], Goal(Style.npu)))
    files[2].write_text("x.cuda()\n")  # migrated by itself, in a journal of its folder
    journal.undo(files[2])
    journal.write_in_place(migrate(tmp_path, Goal(Style.npu)))
    assert journal.undo(files[0]) == [files[0]]
    assert ["npu" in file.read_text() for file in files] == [False, True, True]
    with pytest.raises(NpukitError, match=r"a\.py has no migration to undo"):
        journal.undo(files[0])
    assert journal.undo(tmp_path) == files[1:]
    assert not (tmp_path / ".npukit").exists()


def test_undo_refuses_files_edited_since(tmp_path: Path) -> None:
    file = tmp_path / "a.py"
    file.write_text(CUDA)
    journal.write_in_place(migrate(tmp_path))
    file.write_text("mine = 1\n")
    with pytest.raises(NpukitError, match=r"edited since the migration: a\.py"):
        journal.undo(tmp_path)
    assert file.read_text() == "mine = 1\n"


def test_in_place_refuses_uncommitted_changes(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(CUDA)
    for command in ("init -q", "add a.py"):
        subprocess.run(["git", *command.split()], cwd=tmp_path, check=True)
    result = migrate(tmp_path)
    with pytest.raises(NpukitError, match="--allow-dirty"):
        journal.write_in_place(result)
    journal.write_in_place(result, allow_dirty=True)
    assert ".cuda()" not in (tmp_path / "a.py").read_text()


def test_a_copy_leaves_the_project_alone(tmp_path: Path) -> None:
    source = tmp_path / "project"
    source.mkdir()
    (source / "a.py").write_text(CUDA)
    (source / "data.bin").write_bytes(b"\0cuda")
    journal.write_copy(migrate(source), source, tmp_path / "copy")
    assert (source / "a.py").read_text() == CUDA
    assert ".to(torch.accelerator.current_accelerator())" in (tmp_path / "copy" / "a.py").read_text()
    assert (tmp_path / "copy" / "data.bin").read_bytes() == b"\0cuda"


def test_ignore_comments_select_and_ignore(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(
        "import torch\nx.cuda()  # npukit: ignore[NPK110]\ny.cuda()  # npukit: ignore\n"
        "z.cuda()\ntorch.cuda.synchronize()\n"
    )
    after = migrate(tmp_path, Goal(Style.npu)).changes[0].after
    assert "x.cuda()" in after and "y.cuda()" in after and "z.npu()" in after
    assert "z.cuda()" in migrate(tmp_path, Goal(Style.npu), ignore=["NPK110"]).changes[0].after
    only = migrate(tmp_path, Goal(Style.npu), select=["NPK110"]).changes[0].after
    assert "torch.cuda.synchronize()" in only and "z.npu()" in only
    with pytest.raises(NpukitError, match="NPK9"):
        migrate(tmp_path, select=["NPK9"])


def test_ignore_comments_in_cells(tmp_path: Path) -> None:
    sources = (["import torch\n", "import os\n"], ["x.cuda()  # npukit: ignore\n", "y.cuda()"], ["z.cuda()"])
    cells = [{"cell_type": "code", "metadata": {}, "outputs": [], "source": source} for source in sources]
    (tmp_path / "n.ipynb").write_text(json.dumps({"cells": cells, "nbformat": 4, "nbformat_minor": 5}))
    after = migrate(tmp_path, Goal(Style.npu)).changes[0].after
    assert "x.cuda()" in after and "y.npu()" in after and "z.npu()" in after


def test_names_that_another_file_reexports(tmp_path: Path) -> None:
    (tmp_path / "compat.py").write_text("import torch as tch\nfrom other import *\n")
    (tmp_path / "other.py").write_text("from compat import tch\n")
    (tmp_path / "a.py").write_text("import torch\nfrom compat import tch as t\nt.cuda.synchronize()  # cuda\n")
    after = {change.path.name: change.after for change in migrate(tmp_path, Goal(Style.npu)).changes}
    assert "t.npu.synchronize()" in after["a.py"]


def test_notebook_changes_only_its_lines(tmp_path: Path) -> None:
    cells = [
        {"cell_type": "markdown", "metadata": {}, "source": ["x.cuda()"]},
        {"cell_type": "code", "execution_count": 3, "metadata": {}, "outputs": [{"text": ["cuda é"]}],
         "source": ["%matplotlib inline\n", "!nvidia-smi\n", "import torch"]},
        {"cell_type": "code", "execution_count": None, "metadata": {}, "outputs": [],
         "source": "x = 'ü'\nx.cuda()\ny.cuda()"},
    ]  # fmt: skip
    text = json.dumps({"cells": cells, "nbformat": 4, "metadata": {}}, indent=1, ensure_ascii=False)
    (tmp_path / "n.ipynb").write_text(text)
    (change,) = migrate(tmp_path).changes
    book = json.loads(change.after)
    assert book["cells"][1]["source"][2:] == [
        "import torch\n",
        "\n",
        "DEVICE = torch.device(torch.accelerator.current_accelerator() or 'cpu')",
    ]
    assert book["cells"][2]["source"] == "x = 'ü'\nx.to(DEVICE)\ny.to(DEVICE)"
    assert book["cells"][0] == cells[0] and book["cells"][1]["outputs"] == cells[1]["outputs"]
    assert [finding.place.cell for finding in change.fixed if finding.place] == [2, 2]
    removed = [line for line in change.diff(tmp_path).splitlines() if line.startswith("-")]
    assert len(removed) == 3  # the header, the last import, the line with both .cuda()


def test_commands_in_a_notebook_are_told(tmp_path: Path) -> None:
    lines = [
        "import torch",
        "!CUDA_VISIBLE_DEVICES=0 python t.py",
        "%time x = y.cuda()",
        "!nvidia-smi",
        "%time for i in x: pass",
    ]
    cells = [
        {"cell_type": "code", "source": "\n".join(lines)},
        {"cell_type": "code", "source": "%%bash\nt --device cuda"},
    ]
    (tmp_path / "n.ipynb").write_text(json.dumps({"cells": cells, "nbformat": 4, "metadata": {}}))
    result = migrate(tmp_path, Goal(Style.npu))
    assert [(finding.place.cell, finding.place.line) for finding in result.left if finding.place] == [
        (0, 3),
        (1, 2),
        (0, 5),
    ]
    assert "%time x = y.npu()" in result.changes[0].after
    assert [finding.code for finding in analyze([tmp_path], select=["NPK207"]).findings] == ["NPK207"]


def test_scripts_yaml_and_images(tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text(
        "#!/bin/sh\n# CUDA_VISIBLE_DEVICES=9\nexport CUDA_VISIBLE_DEVICES=0,1\n./t --device cuda\n"
    )
    (tmp_path / "c.yaml").write_text("env:\n  NCCL_SOCKET_IFNAME: eth0\nname: cuda\n")
    (tmp_path / "Dockerfile").write_text("FROM nvidia/cuda:11.8\nENV CUDA_VISIBLE_DEVICES=0\n")
    (tmp_path / "c.json").write_text(
        '["--device", "cuda", {"device_type": "cuda", "note": "device cuda", "b_backend":"nccl"}]'
    )
    result = migrate(tmp_path, Goal(Style.npu))
    after = {change.path.name: change.after for change in result.changes}
    assert after["c.json"] == '["--device", "npu", {"device_type": "npu", "note": "device cuda", "b_backend":"hccl"}]'
    assert after["run.sh"].endswith("9\nexport ASCEND_RT_VISIBLE_DEVICES=0,1\n./t --device npu\n")
    assert after["c.yaml"] == "env:\n  HCCL_SOCKET_IFNAME: eth0\nname: cuda\n"
    assert after["Dockerfile"] == "FROM nvidia/cuda:11.8\nENV ASCEND_RT_VISIBLE_DEVICES=0\n"
    assert [finding.code for finding in result.left] == ["NPK208"]
    both = {change.path.name: change.after for change in migrate(tmp_path).changes}
    assert "export CUDA_VISIBLE_DEVICES=0,1\nexport ASCEND_RT_VISIBLE_DEVICES=0,1\n" in both["run.sh"]
    assert list(both) == ["run.sh"]


VISIBLE, ON_NPU = "CUDA_VISIBLE_DEVICES", "ASCEND_RT_VISIBLE_DEVICES"


@pytest.mark.parametrize(
    ("name", "before", "portable"),
    [
        (
            "a.sh",
            "  export X=$(seq 0 $((N - 1)))\n",
            "  export X=$(seq 0 $((N - 1)))\n  export Y=$(seq 0 $((N - 1)))\n",
        ),
        ("a.sh", 'X=0\necho "X=$X"\n', 'X=0 Y=0\necho "X=$X"\n'),
        ("a.sh", "ssh node X=$X ./t\n", "ssh node X=$X ./t\n"),
        ("a.sh", "X=$(ids)\nexport X\n", "X=$(ids) Y=$(ids)\nexport X Y\n"),
        ("a.sh", "export X=${X:-0}\n", "export X=${X:-0}\nexport Y=${Y:-0}\n"),
        ("a.sh", 'g="${X:-0}"\nX=$g ./t\n', 'g="${Y:-${X:-0}}"\nX=$g Y=$g ./t\n'),
        ("a.sh", "n=$(echo $X | wc -w)\n", "n=$(echo ${Y:-$X} | wc -w)\n"),
        ("a.sh", 'read -ra G <<< "${X}"\n', 'read -ra G <<< "${Y:-${X}}"\n'),
        ("a.sh", 'X="${G:-0, 1}" ./t\n', 'X="${G:-0, 1}" Y="${G:-0, 1}" ./t\n'),
        ("a.sh", "X=`gpus 2`;./t\n", "X=`gpus 2` Y=`gpus 2`;./t\n"),
        ("a.sh", "docker run -e X=0 --env=X=1 img\n", "docker run -e X=0 --env=X=1 img\n"),
        ("a.sh", 'docker run -e "X=0" img "y"\n', 'docker run -e "X=0" img "y"\n'),
        ("a.sh", "sbatch --export=ALL,X=0 t.sh\n", "sbatch --export=ALL,X=0 t.sh\n"),
        ("a.sh", "./t  # X=0\n", "./t  # X=0\n"),
        ("a.sh", "X=0 ./t\necho $X\nunset X\n", "X=0 Y=0 ./t\necho ${Y:-$X}\nunset X\n"),
        ("Dockerfile", "ENV X 0\nRUN x\n", "ENV X 0\nRUN x\n"),
        ("a.yaml", "e:\n  - X=0\n  - Z=1\n", "e:\n  - X=0\n  - Z=1\n"),
    ],
)
def test_a_variable_stands_wherever_shells_and_configurations_set_it(
    tmp_path: Path, name: str, before: str, portable: str
) -> None:
    before, portable = (text.replace("X", VISIBLE).replace("Y", ON_NPU) for text in (before, portable))
    (tmp_path / name).write_text(before)
    both = migrate(tmp_path).changes
    assert (both[0].after if both else before) == portable
    renamed = migrate(tmp_path, Goal(Style.npu)).changes
    assert (renamed[0].after if renamed else before) == (before if "# " in before else before.replace(VISIBLE, ON_NPU))


def test_what_is_left_on_a_line_that_changes_is_named_as_what_it_is(tmp_path: Path) -> None:
    (tmp_path / "a.sh").write_text("CUDA_VISIBLE_DEVICES=1 python eval.py --device cuda:1\n")
    (left,) = migrate(tmp_path).left
    assert (left.code, left.place and left.place.column) == ("NPK150", 48)


def test_report_has_log_unsupported_list_and_change_record(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(CUDA + "torch.cuda.nvtx.mark('a')\n")
    result = migrate(tmp_path)
    report = show.as_data(result)
    assert report["changes"][0]["fixed"][0]["code"] == "NPK110" and "+torch.zeros" in report["changes"][0]["diff"]
    assert (report["left"][0]["code"], report["left"][0]["line"]) == ("NPK201", 3)
    assert "| a.py:3 | NPK201 |" in show.as_markdown(result) and "```diff" in show.as_markdown(result)
    assert "a.py:3  torch.cuda.nvtx" in show.as_text(result)


_BOOK = {"cells": [{"cell_type": "code", "source": ["import torch\\n", "x.cuda()"], "outputs": ["é"]}], "nbformat": 4}
MALFORMED = {
    "bad_utf8.py": b"x.cuda()\n\xff\xfe\n",
    "bad_cookie.py": b"# coding: nonsense\nx.cuda()\n",
    "python2.py": b"print 'cuda'\nexec 'x.cuda()'\n",
    "nul.py": b"x.cuda()\0\n",
    "deep.py": b"cuda = " + b"(" * 5000 + b")" * 5000,
    "long_sum.py": b"cuda = " + b"1+" * 50_000 + b"1",
    "minus.py": b"cuda = " + b"-" * 50_000 + b"1",
    "cut.py": b"def f(:\n    x.cuda(",
    "binary.py": bytes(range(256)) + b"cuda",
    "utf16.py": "x.cuda()\n".encode("utf-16"),
    "tabs.py": b"if cuda:\n\tx\n        y\n",
    "cut.ipynb": b'{"cells": [{"cell_type": "code", "source": ["x.cuda()',
    "list.ipynb": b'["cuda"]',
    "odd.ipynb": b'{"cells": [{"source": ["x.cuda()"]}]}',
    "number.ipynb": b'{"cells": 3, "cuda": 1}',
    "magic.ipynb": b'{"cells": [{"cell_type": "code", "source": ["x.cuda(\\n"]}]}',
    "deep.ipynb": b'{"cuda":' + b"[" * 100_000,
    "bad.sh": b"\xff CUDA_VISIBLE_DEVICES=0\n",
}


@settings(max_examples=300)
@given(st.data())
def test_damaged_files_never_crash_and_stay(data: st.DataObject) -> None:
    """Whole files with bytes cut out, doubled or put in: either they still parse, or they stay."""
    name = data.draw(st.sampled_from(["a.py", "n.ipynb"]))
    whole = CUDA.encode() * 3 if name == "a.py" else json.dumps(_BOOK).encode()
    start, end = sorted(data.draw(st.tuples(st.integers(0, len(whole)), st.integers(0, len(whole)))))
    damaged = whole[:start] + data.draw(st.binary(max_size=4)) + whole[end:]
    try:
        document = read(Path(name), damaged)
        change, _ = migrate_document(document, Selection().rules(), Goal())
    except Unreadable:
        return
    if change is not None:
        assert read(Path(name), change.after.encode(change.encoding)).python is not None


def test_malformed_files_are_findings_and_stay(tmp_path: Path) -> None:
    for name, data in MALFORMED.items():
        (tmp_path / name).write_bytes(data)
    (tmp_path / "loop").symlink_to(tmp_path)
    (tmp_path / "gone.py").symlink_to(tmp_path / "nowhere.py")  # cannot be read
    (tmp_path / "folder.py").mkdir()
    (tmp_path / "good.py").write_text(CUDA)
    result = migrate(tmp_path, Goal(Style.npu))
    assert [change.path.name for change in result.changes] == ["good.py"]
    malformed = {finding.place.file.name for finding in result.left if finding.place and finding.code == "NPK001"}
    assert malformed == {*MALFORMED, "gone.py"}


def test_huge_literals_are_quick(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(f"x = {list(range(100_000))}\ns = '{'cuda' * 100_000}'\nx.cuda()\n")
    assert migrate(tmp_path, Goal(Style.npu)).changes[0].after.endswith("x.npu()\n")


def test_long_lines_are_quick(tmp_path: Path) -> None:
    table = "{" + "'cuda': [1](2), " * 8_000 + "}"
    (tmp_path / "a.py").write_text(f"import torch\nmock_it = patch(x)\ns = {table!r}\nx.cuda()\n")
    assert migrate(tmp_path, Goal(Style.npu)).changes[0].after.endswith("x.npu()\n")


@settings(max_examples=150)
@given(_MADE["PROGRAMS"], st.sampled_from(list(Style)))
def test_made_programs_parse_and_settle(program: str, style: Style) -> None:
    assert _MADE["trouble"](program, style) is None


@pytest.mark.parametrize("style", list(Style))
@pytest.mark.parametrize("path", sorted(FUZZED.glob("*.txt")), ids=lambda path: path.stem)
@pytest.mark.parametrize("torch", ["", "1.13"])
def test_programs_that_the_fuzzer_found_settle(path: Path, style: Style, torch: str) -> None:
    assert _MADE["trouble"](path.read_text(encoding="utf-8"), style, torch) is None


@settings(max_examples=60)
@given(_MADE["PROGRAMS"], st.sampled_from(list(Style)))
def test_programs_without_cuda_stay(program: str, style: Style) -> None:
    document = read(Path("a.py"), program.replace("cuda", "cda").replace("CUDA", "CDA").replace("nccl", "ncl").encode())
    assert migrate_document(document, Selection().rules(), Goal(style))[0] is None


def test_projects_held_to_an_old_torch_load_torch_npu_themselves(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text("torch==2.1.0\n")
    (tmp_path / "a.py").write_text(CUDA + "s = torch.cuda.amp.GradScaler(enabled=True)\n")
    (change,) = migrate(tmp_path).changes
    assert "try:\n    import torch_npu\nexcept ImportError:\n    pass\n" in change.after
    assert "getattr(torch, DEVICE).amp.GradScaler(enabled=True)\n" in change.after
    assert "get_device_module" not in change.after
    change.path.write_text(change.after)
    assert migrate(tmp_path).changes == ()


def test_packages_load_torch_npu_once(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text("torch==2.1.0\n")
    (tmp_path / "pkg" / "sub").mkdir(parents=True)
    (tmp_path / "pkg" / "sub" / "__init__.py").write_text("")
    (tmp_path / "pkg" / "__init__.py").write_text('"""A package."""\nfrom .a import x\n')
    (tmp_path / "pkg" / "a.py").write_text(CUDA)
    (tmp_path / "pkg" / "sub" / "b.py").write_text(CUDA + "torch.cuda.nvtx.mark()\n")
    (tmp_path / "pkg" / "tool.py").write_text(CUDA + "if __name__ == '__main__': x\n")
    (tmp_path / "train.py").write_text(CUDA.replace("import torch\n", "import torch\nimport pkg\n"))
    (tmp_path / "alone.py").write_text(CUDA)
    migration = migrate(tmp_path)
    loading = {
        change.path.relative_to(tmp_path).as_posix() for change in migration.changes if "torch_npu" in change.after
    }
    assert loading == {"pkg/__init__.py", "pkg/tool.py", "alone.py"} and len(migration.changes) == 6
    assert next(finding for finding in migration.fixed if finding.code == "NPK105").place
    for change in migration.changes:
        change.path.write_text(change.after)
    assert (tmp_path / "pkg" / "__init__.py").read_text().startswith('"""A package."""\ntry:\n    import torch_npu')
    (left,) = [finding.place for finding in migration.left if finding.code == "NPK201" and finding.place]
    assert "nvtx" in left.file.read_text().splitlines()[left.line - 1]
    assert migrate(tmp_path).changes == ()


def test_a_torch_that_never_had_a_torch_npu_is_replaced_on_npus(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text("torch==1.13.1\n")
    (tmp_path / "a.py").write_text(CUDA)
    assert "torch_npu" not in migrate(tmp_path).changes[0].after


@pytest.mark.parametrize(
    ("file", "text", "allowed"),
    [
        ("requirements.txt", "torch>=2.2.0,<=2.5.1\n", ("2.2", "2.5")),
        ("requirements.txt", "torch >= 1.8, != 2.0.1, < 2.0\n", ("1.8", "1.13")),
        ("requirements.txt", "torch<2.7\n", ("", "2.6")),
        ("requirements.txt", "torch<3.0,>=2\n", ("2.0", "")),
        ("requirements.txt", "# torch==1.7\ntorch>=1.8\ntorchvision<0.20\npytorch-lightning==1.4\n", ("1.8", "")),
        ("requirements/base.txt", "torch~=2.1.0\n", ("2.1", "2.1")),
        ("requirements/docs.txt", "torch==1.8\n", ("", "")),
        ("environment.yml", "channels:\n  - pytorch\ndependencies:\n  - pytorch=1.12.1\n", ("1.12", "1.12")),
        ("environment.yaml", "  - pytorch::pytorch=2.0.1=py3.9_cuda11.7\n  - pytorch-cuda=11.8\n", ("2.0", "2.0")),
        ("README.md", "Tested with **PyTorch 1.8+**, and with PyTorch 2.0; torch-fidelity 0.3\n", ("1.8", "")),
        ("INSTALL.md", "    conda install pytorch==1.7.1 torchvision==0.8.2\n", ("1.7", "")),
        ("get_started.md", "- Install `PyTorch>=1.8.0` and `torchvision>=0.9.0`\n", ("1.8", "")),
        ("docs/get_started.md", "MMDetection works with PyTorch 1.8+.\n", ("1.8", "")),
        ("readme/INSTALL.md", "conda install pytorch=0.4.1 torchvision -c pytorch\n", ("0.4", "")),
        ("docs/benchmarks.md", "Measured with PyTorch 1.3.\n", ("", "")),
        ("CHANGELOG.md", "Support for PyTorch 1.3 is gone.\n", ("", "")),
        ("Dockerfile", "FROM pytorch/pytorch:1.8.1-cuda11.1-cudnn8-devel\n", ("1.8", "")),
        ("docker/Dockerfile", 'ARG PYTORCH="1.6.0"\n# torch==1.2\n', ("1.6", "")),
        ("Dockerfile", "FROM nvcr.io/nvidia/pytorch:23.10-py3\nRUN pip install reformer-pytorch==1.4\n", ("", "")),
        (".github/workflows/test.yml", "matrix:\n  torch-version: ['2.0.1', 1.13.1]\n", ("1.13", "")),
        (".github/workflows/test.yml", "run: pip install torch==1.9.0+cpu torchvision==0.10.0\n", ("1.9", "")),
        ("envs/environment.yml", "dependencies:\n  - pytorch=1.12\n", ("1.12", "")),
        ("pyproject.toml", 'torch = "2.1.2"\n', ("2.1", "2.1")),
        ("pyproject.toml", 'torch = {version = ">=2.2,<2.5", optional = true}\n', ("2.2", "2.4")),
        ("pyproject.toml", 'torch = "^2.1"\ndependencies = ["torch>=2.6.0"]\n', ("2.1", "")),
    ],
)
def test_the_torch_that_a_project_allows(tmp_path: Path, file: str, text: str, allowed: tuple[str, str]) -> None:
    (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / file).write_text(text)
    assert allowed_torch(tmp_path) == allowed


def test_nothing_newer_than_the_torch_that_a_project_allows_is_written(tmp_path: Path) -> None:
    (tmp_path / "environment.yml").write_text("dependencies:\n  - pytorch=2.2.1\n")
    (tmp_path / "a.py").write_text(
        "import torch\nimport torch.distributed as dist\nfrom torch.cuda.amp import custom_fwd\n"
        "def f(event: torch.cuda.Event, given, device):\n    torch.cuda.synchronize()\n"
        "    try:\n        dist.init_process_group(given or 'nccl')\n"
        "    except torch.cuda.OutOfMemoryError:\n        dist.new_group(backend='cpu:gloo,cuda:nccl')\n"
        "@custom_fwd\ndef g(x): return torch.is_autocast_enabled()\n"
    )
    migration = migrate(tmp_path)
    after = migration.changes[0].after
    hccl = "'hccl' if hasattr(torch, 'npu') else 'nccl'"
    assert f"dist.init_process_group(given or ({hccl}))" in after
    assert "(backend='cpu:gloo,npu:hccl' if hasattr(torch, 'npu') else 'cpu:gloo,cuda:nccl')" in after
    assert "event: torch.cuda.Event" in after and "device_module.synchronize()" in after
    assert "import custom_fwd" not in after and "@device_module.amp.custom_fwd\ndef g" in after
    assert "except torch.cuda.OutOfMemoryError" in after
    assert {"NPK101", "NPK103"} <= {finding.code for finding in migration.left}


def test_a_torch_whose_autocast_takes_any_device_has_it_renamed(tmp_path: Path) -> None:
    (tmp_path / "setup.cfg").write_text("install_requires =\n    torch>=2.4,<2.6\n")
    (tmp_path / "a.py").write_text(
        "import torch\nfrom torch.cuda.amp import custom_fwd\n"
        "@custom_fwd\ndef g(x): return torch.is_autocast_enabled()\n"
    )
    after = migrate(tmp_path).changes[0].after
    assert "from torch.amp import custom_fwd\n" in after and "@custom_fwd(device_type=DEVICE)\n" in after
    assert "torch.is_autocast_enabled(DEVICE)\n" in after
    (tmp_path / "a.py").write_text(
        "import torch\nfrom torch.cuda.amp import GradScaler, custom_bwd\nf = GradScaler(), custom_bwd(g)\n"
    )
    (change,) = migrate(tmp_path).changes
    assert "getattr(torch, DEVICE).amp.GradScaler(), torch.amp.custom_bwd(g, device_type=DEVICE)" in change.after
    change.path.write_text(change.after)
    assert migrate(tmp_path).changes == ()


@pytest.mark.parametrize(
    ("torch", "called"),
    [("1.8", "device_module.amp.autocast(False)"), ("1.10", "torch.autocast(DEVICE, enabled=False)")],
)
def test_autocast_of_an_old_torch_is_that_of_the_device(tmp_path: Path, torch: str, called: str) -> None:
    (tmp_path / "requirements.txt").write_text(f"torch=={torch}.0\n")
    (tmp_path / "a.py").write_text(
        "import torch\nfrom torch.cuda.amp import autocast, custom_bwd\n@custom_bwd\ndef f(x):\n"
        "    with autocast(False):\n        torch.cuda.empty_cache()\n        with autocast(False): return x\n"
    )
    after = migrate(tmp_path).changes[0].after
    assert f"with {called}:\n" in after
    assert "@device_module.amp.custom_bwd\n" in after and "torch.cuda.amp" not in after


def test_a_scaler_of_an_old_torch_brings_no_device(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text("torch==2.1.0\n")
    (tmp_path / "a.py").write_text("import torch\nscaler = torch.cuda.amp.GradScaler()\n")
    after = migrate(tmp_path).changes[0].after
    assert "device_module.amp.GradScaler()" in after and "DEVICE =" not in after


@pytest.mark.parametrize("style", list(Style))
def test_a_file_that_does_not_load_torch_still_does_not(tmp_path: Path, style: Style) -> None:
    """A configuration that a framework executes, and a module that imports torch in its functions."""
    (tmp_path / "config.py").write_text("env_cfg = dict(dist_cfg=dict(backend='nccl'), device='cuda')\n")
    (tmp_path / "lazy.py").write_text(
        "def f():\n    import torch\n    torch.cuda.synchronize()\n    return torch.cuda.device_count()\n"
    )
    result = migrate(tmp_path, Goal(style))
    after = {change.path.name: change.after for change in result.changes}
    assert "import torch" not in after.get("config.py", "") and after["lazy.py"].startswith(
        "def f():\n    import torch\n"
    )
    if style is Style.portable:
        assert "config.py" not in after
        assert {finding.code for finding in result.left} == {"NPK111", "NPK120"}
        assert after["lazy.py"].count("torch.accelerator.") == 2


def test_importing_a_migrated_file_asks_no_device(tmp_path: Path) -> None:
    text = "def f(x, device='cuda'):\n    torch.cuda.manual_seed(1)\n    return x.cuda(), torch.device('cuda')\n"
    (tmp_path / "a.py").write_text(f"import torch\n{text}")
    after = migrate(tmp_path).changes[0].after
    assert "is_available" not in after and "device_count" not in after


def test_a_diff_shows_no_line_that_stays(tmp_path: Path) -> None:
    above, below = ("".join(f"\n{name}{number} = f()\n" for number in range(200)) for name in "xy")
    (tmp_path / "a.py").write_text(f"import torch\n{above}a = b.cuda()\n\nc = d.cuda()\n{below}")
    change = migrate(tmp_path).changes[0]
    changed = [line for line in change.diff(tmp_path).splitlines()[2:] if line.startswith(("-", "+"))]
    assert [line for line in changed if line.startswith("-")] == ["-a = b.cuda()", "-c = d.cuda()"]


def test_imports_of_a_function_stand_together(tmp_path: Path) -> None:
    text = (
        "def f():\n    import torch\n\n    from a import b\n\n    g(torch.cuda.empty_cache, torch.cuda.get_rng_state)\n"
    )
    (tmp_path / "a.py").write_text(text)
    assert "import b\n    device_module = torch.npu if" in migrate(tmp_path).changes[0].after


@pytest.mark.parametrize(
    "between",
    [
        "try:\n    import apex\nexcept ImportError:\n    apex = None\n",
        "if TYPE_CHECKING:\n    import apex\n",
        "sys.path.append('..')\n",
        "os.environ['TOKENIZERS_PARALLELISM'] = 'false'\n",
        "try:\n    from torch.distributed import DeviceMesh\nexcept ImportError:\n    HAS_CUDA = False\n",
        "try:\n    import te  # CUDA kernels\nexcept ImportError:\n    def te():\n        return None\n",
        "logger = logging.getLogger(__name__)\nHAS_CUDA_KERNELS = False\n",
        "if HAVE_TE:\n    from te import TEGPULinear\nelse:\n    TEGPULinear = None\n",
    ],
)
def test_constants_stand_below_all_imports(tmp_path: Path, between: str) -> None:
    (tmp_path / "a.py").write_text(f"import torch\n\n{between}\nimport yaml\n\nx.cuda()\ny.cuda()\n")
    assert "\nimport yaml\n\nDEVICE = " in migrate(tmp_path).changes[0].after


@pytest.mark.parametrize(
    "between",
    [
        "x.cuda()\n",
        "try:\n    x.cuda()\nexcept E:\n    import a\n",
        "def f():\n    1\n",
        "e = torch.ones(1)\n",
        "a = 1\nb = 2\nc = 3\nd = 4\n",
        "y = x.to(0)\n",
    ],
)
def test_constants_stand_above_what_may_use_them(tmp_path: Path, between: str) -> None:
    (tmp_path / "a.py").write_text(f"import torch\n\n{between}\nimport yaml\n\nx.cuda()\ny.cuda()\n")
    assert migrate(tmp_path).changes[0].after.startswith("import torch\n\nDEVICE = ")


def test_code_below_the_constants_has_an_empty_line_above_it(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("import torch\ntorch.manual_seed(0)\nx = x.cuda().cuda()\n")
    assert '"cpu")\n\ntorch.manual_seed' in migrate(tmp_path).changes[0].after


def test_tensors_of_another_framework_stay(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("import paddle\nx = paddle.ones([2]).cuda()\n")
    assert not migrate(tmp_path).changes


def test_the_device_is_there_before_its_first_use(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("from models import make\nmodel = make().cuda()\nimport torch\nx.cuda()\n")
    names = [
        getattr(node.targets[0], "id", "")
        for node in ast.parse(migrate(tmp_path).changes[0].after).body
        if isinstance(node, ast.Assign)
    ]
    assert names.index("DEVICE") < names.index("model")


def test_devices_reach_functions_of_other_files(tmp_path: Path) -> None:
    (tmp_path / "funcs.py").write_text(
        "def to_device(x, device=None): ...\nclass Engine:\n    def __init__(self, path, device): ...\n"
    )
    (tmp_path / "a.py").write_text(
        "import torch\nimport funcs\nfrom funcs import Engine, to_device\n"
        "to_device(x, 'cuda')\nfuncs.to_device(x, 'cuda')\nEngine('p', 'cuda')\nEngine('cuda', 'cpu')\n"
    )
    after = next(change.after for change in migrate(tmp_path).changes if change.path.name == "a.py")
    assert after.count("DEVICE_TYPE") == 4
    assert "Engine('cuda', 'cpu')" in after


def test_a_configuration_gets_no_constant_and_no_import(tmp_path: Path) -> None:
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "a.py").write_text(
        "import torch\nfrom mmengine.hooks import Hook\nenv = dict(backend='nccl')\n"
    )
    (tmp_path / "configs" / "b.py").write_text("from mmengine.hooks import Hook\nenv = dict(backend='nccl')\n")
    migration = migrate(tmp_path)
    assert [change.path.name for change in migration.changes] == ["a.py"]
    assert "env = dict(backend='hccl' if hasattr(torch, 'npu') else 'nccl')" in migration.changes[0].after
    assert "DEVICE" not in migration.changes[0].after
    assert [finding.code for finding in migration.left] == ["NPK120"]


def test_a_default_uses_no_torch_that_only_the_function_imports(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(
        "class W:\n    def f(self, backend='nccl'):\n        import torch\n        torch.cuda.synchronize()\n"
    )
    migration = migrate(tmp_path)
    assert "backend='nccl'" in migration.changes[0].after
    assert "NPK120" in [finding.code for finding in migration.left]


@pytest.mark.parametrize(
    "entries",
    [
        [{"file": "../outside.py", "original": "0", "new": ""}],
        [{"file": "inside.py", "original": "../../../../outside.py", "new": ""}],
        [{"file": "link.py", "original": "0", "new": ""}],
        [{"file": 5}],
        {"file": "x"},
        "text",
    ],
)
def test_a_journal_that_came_with_a_project_reaches_nothing_outside(tmp_path: Path, entries: Any) -> None:
    project, outside = tmp_path / "project", tmp_path / "outside.py"
    folder = project / ".npukit" / "migrations" / "0001"
    folder.mkdir(parents=True)
    outside.write_text("mine")
    (project / "link.py").symlink_to(outside)
    (folder / "0").write_text("theirs")
    (folder / "changes.json").write_text(json.dumps(entries))
    with pytest.raises(NpukitError, match="nothing was undone"):
        journal.undo(project)
    assert outside.read_text() == "mine" and not (project / "inside.py").exists()


@pytest.mark.parametrize(
    ("before", "module"),
    [
        (
            "def f(x):\n    if not torch.cuda.is_available():\n        return x\n    with g(x):\n        {}\n",
            "torch.accelerator",
        ),
        ("def f(i):\n    with torch.cuda.device(i):\n        {}\n", "torch.accelerator"),
        (
            "def f(x):\n    if not torch.cuda.is_available():\n        x += 1\n    {}\n",
            "torch.accelerator",
        ),
        ("def f(x):\n    if torch.cuda.is_available():\n        return x\n    {}\n", "torch.accelerator"),
    ],
)
def test_one_name_of_the_device_where_there_must_be_a_card(tmp_path: Path, before: str, module: str) -> None:
    (tmp_path / "a.py").write_text("import torch\n\n\n" + before.format("torch.cuda.synchronize()"))
    assert f"    {module}.synchronize()\n" in migrate(tmp_path).changes[0].after


@pytest.mark.parametrize(
    ("imports", "expected"),
    [
        ("import numpy as np\nfrom fvcore import nn\n", "import numpy as np\nimport torch\nfrom fvcore import nn\n"),
        ("import timm\nimport yaml\n", "import timm\nimport torch\nimport yaml\n"),
        ("import os\n\nfrom fvcore import nn\n", "import os\n\nimport torch\nfrom fvcore import nn\n"),
        ("import yaml\nimport numpy\n", "import yaml\nimport numpy\nimport torch\n"),  # not sorted
        (
            "from fvcore import nn\nimport numpy\n",
            "from fvcore import nn\nimport numpy\nimport torch\n",
        ),  # by name alone
        ("import os\nimport yaml\n", "import os\nimport yaml\nimport torch\n"),  # not apart from the standard library
        ("from own import nn\n", "import torch\n\nfrom own import nn\n"),
        ("import os\n\nfrom own import nn\n", "import os\n\nimport torch\n\nfrom own import nn\n"),
    ],
)
def test_torch_is_imported_where_the_imports_of_the_file_are_sorted_to(
    tmp_path: Path, imports: str, expected: str
) -> None:
    (tmp_path / "own.py").write_text("import torch\n")
    (tmp_path / "a.py").write_text(f"{imports}\n\ndef f(x):\n    return x.cuda().cuda()\n")
    after = next(change.after for change in migrate(tmp_path).changes if change.path.name == "a.py")
    assert after.startswith(f"{expected}\nDEVICE = ") and "\n\n\ndef f" in after


def test_one_file_is_written_to_a_file(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(CUDA)
    journal.write_copy(migrate(tmp_path / "a.py"), tmp_path / "a.py", tmp_path / "b.py")
    assert "torch.accelerator" in (tmp_path / "b.py").read_text() and (tmp_path / "a.py").read_text() == CUDA
    journal.write_copy(migrate(tmp_path / "a.py"), tmp_path / "a.py", tmp_path / "folder")
    assert (tmp_path / "folder" / "a.py").read_bytes() == (tmp_path / "b.py").read_bytes()
    with pytest.raises(NpukitError):
        journal.write_copy(migrate(tmp_path / "a.py"), tmp_path / "a.py", tmp_path / "a.py")


@pytest.mark.parametrize("name", ["report.pdf", "report", "report.txt"])
def test_a_report_of_an_unknown_format_is_refused(tmp_path: Path, npukit: Any, name: str) -> None:
    (tmp_path / "a.py").write_text(CUDA)
    assert npukit("migrate", tmp_path / "a.py", "--report", tmp_path / name).returncode == 2
    assert not (tmp_path / name).exists()


@pytest.mark.parametrize("style", list(Style))
@pytest.mark.parametrize("value", ["'cuda:%d' % x", "f'cuda:{x}'", "'cuda:{}'.format(x)", "'cuda:' + str(x)", "'cuda'"])
def test_a_value_that_became_a_device_stays_in_a_second_run(tmp_path: Path, style: Style, value: str) -> None:
    calls = (
        "torch.cuda.manual_seed_all({})",
        "torch.manual_seed({})",
        "torch.cuda.set_device({})",
        "torch.cuda.manual_seed({})",
        "model.cuda({})",
        "torch.load('a', map_location={})",
    )
    text = "import torch\n\ndef f(x, model):\n" + "".join(f"    {call.format(value)}\n" for call in calls)
    (tmp_path / "a.py").write_text(text, encoding="utf-8")
    first = migrate(tmp_path, Goal(style))
    (change,) = first.changes
    (tmp_path / "a.py").write_text(change.after, encoding="utf-8")
    assert not migrate(tmp_path, Goal(style)).changes
