"""What the portable style writes depends on the project's torch, and on what the file itself says about devices."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from npukit.migrate import styles
from npukit.migrate.goal import Goal, Style
from npukit.migrate.migration import migrate, migrate_document
from npukit.migrate.selection import Selection
from npukit.migrate.styles.npu import Npu
from npukit.migrate.styles.style import Text
from npukit.source import Edit, PythonFile, read

_RULES = Selection().rules()
NPU = 'hasattr(torch, "npu") and torch.npu.is_available()'


def after(text: str, torch: str = "") -> str:
    goal = Goal(oldest_torch=torch)
    document = read(Path("/no/formatter/a.py"), f"import torch\n\n{text}".encode())
    change, _ = migrate_document(document, _RULES, goal)
    written = change.after if change else document.text
    again, _ = migrate_document(read(document.path, written.encode()), _RULES, goal)
    assert again is None, again.after
    return written.removeprefix("import torch\n\n")


CHOICE = 'device = torch.device("cuda" if torch.cuda.is_available() else "cpu")\n'
CHOSEN = 'device = torch.device(torch.accelerator.current_accelerator(check_available=True) or "cpu")\n'


def test_the_files_own_device_is_used_where_it_holds_the_accelerator() -> None:
    use = "model = Net().cuda()\nx = torch.ones(2, device='cuda')\n"
    assert after(CHOICE + use) == CHOSEN + use.replace("cuda()", "to(device)").replace("'cuda'", "device")


@pytest.mark.parametrize(
    "text",
    [
        f"def f():\n    {CHOICE}def g(x):\n    return x.cuda()\n",  # of another function
        f"x = x.cuda()\n{CHOICE}",  # not yet
        f"{CHOICE}if args.cpu:\n    device = 'cpu'\nx = x.cuda()\n",  # set again
        'device = torch.device("cuda" if args.gpu else "cpu")\nx = x.cuda()\n',  # an option
        f"{CHOICE}def g(x, device):\n    return x.cuda()\n",  # hidden
    ],
)
def test_another_device_is_not(text: str) -> None:
    assert "x.to(torch.accelerator.current_accelerator())" in after(text)


def test_a_constant_is_written_for_what_is_used_again() -> None:
    once = "def f(x):\n    return x.cuda()\n"
    assert after(once) == once.replace("cuda()", "to(torch.accelerator.current_accelerator())")
    twice = once + "def g(x):\n    return x.cuda()\n"
    constant = 'DEVICE = torch.device(torch.accelerator.current_accelerator() or "cpu")\n\n'
    assert after(twice) == constant + twice.replace("cuda()", "to(DEVICE)")
    made = once + "def g():\n    run(torch.device('cuda'))\n"
    assert after(made).endswith(made.replace("cuda()", "to(DEVICE)").replace("torch.device('cuda')", "DEVICE"))


BRANCHES = """def choose():
    if torch.cuda.is_available():
        return torch.device("cuda")
    elif torch.backends.mps.is_available():
        return torch.device("mps")
    return torch.device("cpu")
"""


def test_a_choice_among_further_devices_gets_one_more_branch() -> None:
    branch = f'    elif {NPU}:\n        return torch.device("npu")\n'
    assert after(BRANCHES) == BRANCHES.replace("    elif torch.backends", f"{branch}    elif torch.backends")
    chain = '"cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"'
    migrated_text = after(f"device = {chain}\n")
    assert f'"npu" if {NPU}\n    else "cuda" if torch.cuda.is_available()\n    else "mps" if' in migrated_text


@pytest.mark.parametrize(
    ("before", "written"),
    [
        (CHOICE, f'"npu" if {NPU} else "cuda" if torch.cuda.is_available() else "cpu"'),
        (
            'd = "cuda:" + str(i) if torch.cuda.is_available() else "cpu"\n',
            f'"npu:" + str(i) if {NPU}\n    else "cuda:"',
        ),
        (
            'd = torch.device("cuda:%d" % i) if torch.cuda.is_available() else torch.device("cpu")\n',
            f'torch.device("npu:%d" % i) if {NPU}\n    else torch.device("cuda:%d" % i) if torch.cuda',
        ),
        ('d = f"cuda:{i}" if torch.cuda.is_available() and i > 0 else "cpu"\n', f'f"npu:{{i}}" if {NPU} and i > 0'),
        ('kind = "cuda" if "cuda" in device else "cpu"\n', '"npu" if "npu" in device else "cuda" if "cuda" in device'),
        (
            'if torch.cuda.is_available():\n    device = "cuda"\nelse:\n    device = "cpu"\n',
            f'elif {NPU}:\n    device = "npu"\nelse:',
        ),
    ],
)
def test_older_torch_gets_the_name_of_npus_beside_that_of_cuda(before: str, written: str) -> None:
    assert written in after(before, "2.5")


KIND = 'DEVICE = "npu" if hasattr(torch, "npu") else "cuda"\n\n'
ASKED = f"torch.cuda.is_available() or ({NPU})"


@pytest.mark.parametrize(
    ("before", "written"),
    [
        ("if torch.cuda.is_available():\n    run()\n", f"if {ASKED}:\n    run()\n"),
        ("use = a.gpu and torch.cuda.is_available()\n", f"use = a.gpu and ({ASKED})\n"),
        ("check(not torch.cuda.is_available())\n", f"check(not ({ASKED}))\n"),
        ("run(not (torch.cuda.is_available()))\n", f"run(not ({ASKED}))\n"),
        ("@skip(not torch.cuda.is_available())\ndef f(): ...\n", f"@skip(not ({ASKED}))\ndef f(): ...\n"),
        (
            "assert torch.cuda.is_available()\nd = torch.device(\"cuda:{}\".format(i))\n",
            f"{KIND}assert getattr(torch, DEVICE).is_available()\nd = torch.device(\"{{}}:{{}}\".format(DEVICE, i))\n",
        ),
        (
            'DEVICE = 1\ntorch.cuda.set_device(i)\nx = f("cuda", device="cuda")\n',
            f"TORCH_{KIND}DEVICE = 1\ngetattr(torch, TORCH_DEVICE).set_device(i)\n"
            'x = f("cuda", device=TORCH_DEVICE)\n',
        ),
        (
            "if torch.cuda.is_available():\n    torch.cuda.empty_cache()\n",
            'device_module = torch.npu if hasattr(torch, "npu") else torch.cuda\n\n'
            "if device_module.is_available():\n    device_module.empty_cache()\n",
        ),
        (
            "device = 'cuda'\ntorch.cuda.empty_cache()\n",  # the variable may be set again
            "device_module = torch.npu if hasattr(torch, 'npu') else torch.cuda\n\n"
            "device = 'npu' if hasattr(torch, 'npu') else 'cuda'\ndevice_module.empty_cache()\n",
        ),
    ],
)  # fmt: skip
def test_a_single_call_takes_the_module_of_the_device_that_the_file_names(before: str, written: str) -> None:
    assert after(before, "1.8") == written


def test_a_single_call_beside_the_kind_of_device_takes_its_module() -> None:
    text = "scaler = torch.amp.GradScaler()\ntorch.cuda.empty_cache()\n"
    assert "torch.get_device_module(DEVICE_TYPE).empty_cache()" in after(text)


def test_a_string_that_a_question_chooses_goes_with_the_question() -> None:
    chosen = '("npu" if hasattr(torch, "npu") else "cuda") if x.device.type in ("cuda", "npu") else "cpu"'
    assert after('memory = "cuda" if x.is_cuda else "cpu"\n', "1.8") == f"memory = {chosen}\n"


def test_where_a_file_knows_other_devices_their_kind_stays_unsaid() -> None:
    text = 'others = ["mps"]\ndevice = "cuda" if x.is_cuda else "cpu"\n'
    assert "x.device.type in" in after(text)


def test_mixed_precision_stays_off_on_a_cpu() -> None:
    text = 'if torch.cuda.is_available():\n    with torch.autocast("cuda"):\n        step()\n'
    assert 'torch.autocast("npu" if hasattr(torch, "npu") else "cuda")' in after(text)


def test_devices_beside_the_cpu_are_never_the_cpu() -> None:
    assert after('DEVICES = [torch.device("cpu"), torch.device("cuda")]\n') == (
        'DEVICES = [torch.device("cpu"), torch.device("npu" if hasattr(torch, "npu") else "cuda")]\n'
    )


class _Quiet(Npu):
    """A style that names the device by a variable of the user's."""

    def device_type(self, node: ast.AST, file: PythonFile, goal: Goal, of_card: bool = False) -> Text:
        return Text("DEVICE")

    def move(self, call: ast.Call, func: ast.Attribute, file: PythonFile, goal: Goal) -> tuple[Edit, ...]:
        return (file.replace(call, f"{file.source(func.value)}.to(DEVICE)"),)


def test_a_style_alone_decides_what_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(styles._STYLES, Style.npu, _Quiet())
    (tmp_path / "a.py").write_text("import torch\nscaler = torch.amp.GradScaler()\nmodel.cuda()\n")
    after = migrate(tmp_path, Goal(Style.npu)).changes[0].after
    assert after == "import torch\nscaler = torch.amp.GradScaler(DEVICE)\nmodel.to(DEVICE)\n"
