"""Each rule finds its own bad example and nothing in its good one; the examples are those of its page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from npukit.facts.target import Target
from npukit.migrate.engine import check_file
from npukit.migrate.goal import Goal
from npukit.migrate.prefilter import active_rules
from npukit.migrate.rule import Rule
from npukit.migrate.rules import all_rules
from npukit.report import Finding
from npukit.source import read

FINDING_RULES = [
    rule for rule in all_rules() if rule.code >= "NPK200" and (rule.checks or rule.call_checks or rule.text_checks)
]
EXAMPLE = re.compile(r"^(bad|good)(?: \(([^)]*)\))?:\n((?:    .*\n|\n)+)", re.MULTILINE)


def found(rule: Rule, text: str, name: str = "train.py", goal: Goal | None = None) -> list[Finding]:
    path = Path("examples-of-rules") / name
    findings = list(check_file(read(path, text.encode()), [rule], goal or Goal()))
    is_read = active_rules(path, text.encode(), (rule.code,), Target.of(), None)
    assert is_read or not findings, "the engine would not even read it"
    return findings


def examples(rule: Rule) -> list[tuple[str, str, str]]:
    return [
        (kind, what, re.sub("^    ", "", code, flags=re.M)) for kind, what, code in EXAMPLE.findall(rule.doc + "\n")
    ]


@pytest.mark.parametrize("rule", FINDING_RULES, ids=lambda rule: rule.code)
def test_finds_the_bad_example_and_not_the_good_one(rule: Rule) -> None:
    assert {kind for kind, _, _ in examples(rule)} == {"bad", "good"}
    for kind, what, code in examples(rule):
        card = what.removeprefix("card=") if what.startswith("card=") else "910B3"
        name = what if what and "=" not in what else "train.py"
        assert bool(found(rule, code, name, Goal(target=Target.of(card=card)))) == (kind == "bad"), (
            f"{kind} example of {rule.code}"
        )


def by_code(code: str) -> Rule:
    return next(rule for rule in all_rules() if rule.code == code)


@pytest.mark.parametrize(
    ("code", "text"),
    [
        # The value is read only now and then, or on the way out.
        ("NPK708", "for x in data:\n    loss.backward()\n    if i % 10 == 0:\n        print(loss.item())\n"),
        ("NPK708", "for x in data:\n    total += loss.item()\n"),
        ("NPK504", "import torch\nfor block in blocks:\n    h = torch.cat([h, skips.pop()], 1)\n    h = block(h)\n"),
        ("NPK709", "import torch\nif x.dtype == torch.float64:\n    pass\n"),
        ("NPK709", "import numpy as np\nx = np.float64(3)\ny = np.zeros(3).astype(float)\n"),
        ("NPK713", "import torch\nx = torch.load(path, **options)\n"),
        ("NPK713", "import json\nx = json.load(file)\n"),
        ("NPK401", "try:\n    import flash_attn\nexcept ImportError:\n    flash_attn = None\n"),
        ("NPK401", "from .apex import thing\n"),
        ("NPK201", "try:\n    from torch.cuda import nvtx\nexcept ImportError:\n    nvtx = None\n"),
        ("NPK201", "import torch\nwith torch.backends.cuda.sdp_kernel(enable_math=True):\n    pass\n"),
        ("NPK301", "import torch\nx = torch.relu(torch.nn.Linear(3, 3)(y))\n"),
        ("NPK302", "import torch\nx = torch.softmax(y, -1).cumsum(0)\n"),
        ("NPK501", "import torch\nidx = torch.nonzero(x)\n"),
        ("NPK502", "from torch.utils.data import DataLoader\nDataLoader(d, batch_size=8)\n"),
        ("NPK714", "import torch\ntorch.distributed.init_process_group('gloo', rank=0, world_size=4)\n"),
        (
            "NPK714",
            "import torch.multiprocessing as mp\nname = 'cuda'\ndef run(rank, x):\n    check(x)\n"
            "def check(x):\n    assert x\nmp.spawn(run, args=(x,), nprocs=4)\n",
        ),
        ("NPK713", "import torch\ndef test(path):\n    torch.save(model, path)\n    model = torch.load(path)\n"),
        (
            "NPK713",
            "import torch\nclass PointsDataset:\n    def get(self, i):\n        return torch.load(path(i))\n",
        ),
        ("NPK709", "import pytest, torch\ntypes = [pytest.param(torch.float64, id='a')]\n"),
        ("NPK714", "import torch\ntorch.distributed.init_process_group('nccl', world_size=args.world_size)\n"),
        ("NPK207", "print('see nvidia-smi for the memory')\n"),
        ("NPK406", "TrainingArguments(load_in_4bit=False, optim='adamw_torch', tf32=None)\n"),
        ("NPK304", "import torch\nx = y.to(torch.bfloat16)\n"),
    ],
)
def test_says_nothing_about(code: str, text: str) -> None:
    serious = [finding for finding in found(by_code(code), text) if finding.severity.value != "note"]
    assert serious == []


def test_methods_of_tensors_are_known_by_name() -> None:
    text = "import torch\ndef f(w):\n    return w.slogdet()[1] + w.matmul(w)\n"
    assert len(found(by_code("NPK302"), text)) == 1


def test_names_are_followed_through_aliases() -> None:
    text = "import torch as th\nfrom torch import linalg as la\nth.linalg.det(x)\nla.inv(x)\n"
    assert [finding.place.line for finding in found(by_code("NPK302"), text) if finding.place] == [3, 4]


def test_what_a_framework_asks_cuda_for_is_told_where_it_is_called() -> None:
    text = "from mmengine.device import get_max_cuda_memory, is_npu_available\nprint(get_max_cuda_memory())\n"
    assert [finding.place.line for finding in found(by_code("NPK201"), text) if finding.place] == [2]


def test_private_functions_for_cuda_are_found() -> None:
    text = "import torch\nfrom torch import _C\n_C._cuda_attach_out_of_memory_observer(f)\nmodel._cuda_init()\n"
    assert [finding.place.line for finding in found(by_code("NPK201"), text) if finding.place] == [3]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("pyproject.toml", '[project]\ndependencies = ["torch", "flash-attn>=2"]\n'),
        ("setup.py", 'from setuptools import setup\nsetup(install_requires=["xformers"])\n'),
        ("environment.yaml", "dependencies:\n  - python=3.10\n  - pip:\n    - xformers==0.0.20\n"),
        (
            "Dockerfile",
            "FROM ubuntu\nRUN true && pip install numpy \\\n    flash-attn --no-build-isolation\n",
        ),
        ("install.sh", "pip install 'bitsandbytes>=0.40' mamba-ssm\n"),
    ],
)
def test_requirements_of_every_kind_of_file(name: str, text: str) -> None:
    assert any(finding.severity.value == "error" for finding in found(by_code("NPK403"), text, name))


@pytest.mark.parametrize(("version", "is_too_old"), [("<2.0.0,>=1.12.1", True), (">=1.12", False), ("<2.6", False)])
def test_a_range_that_no_torch_npu_is_for_is_an_error(version: str, is_too_old: bool) -> None:
    assert bool(found(by_code("NPK404"), f"torch{version}\n", "requirements.txt")) is is_too_old


def test_each_line_of_a_conda_environment_is_read() -> None:
    text = (
        "dependencies:\n  - python=3.8\n  - pytorch=1.11.0\n  - pip:\n    - flash-attn==2.0\n    - xformers==0.0.20\n"
    )
    assert [finding.place.line for finding in found(by_code("NPK404"), text, "environment.yaml") if finding.place] == [
        3
    ]
    assert [finding.place.line for finding in found(by_code("NPK403"), text, "environment.yaml") if finding.place] == [
        5,
        6,
    ]


def test_a_setup_file_that_only_names_itself_requires_nothing() -> None:
    text = 'from setuptools import setup\nsetup(name="xformers", packages=["xformers"], install_requires=["numpy"])\n'
    assert found(by_code("NPK403"), text, "setup.py") == []
    assert found(by_code("NPK403"), '[project]\nname = "xformers"\n', "pyproject.toml") == []


def test_a_file_that_is_there_for_cuda_is_only_noted() -> None:
    image = found(by_code("NPK208"), "FROM nvidia/cuda:12.1.0-devel\n", "docker-cuda/Dockerfile")
    assert [finding.severity.value for finding in image] == ["note"]


def test_settings_of_cuda_in_code() -> None:
    text = "args = TrainingArguments(optim='paged_adamw_32bit', tf32=True)\nconfig = Config(load_in_4bit=True)\n"
    assert [finding.place.line for finding in found(by_code("NPK406"), text) if finding.place] == [1, 1, 2]


@pytest.mark.parametrize(
    ("line", "severity"),
    [
        ("kwargs = {'attn_implementation': 'flash_attention_2'}", "note"),
        ("kwargs['attn_implementation'] = 'flash_attention_2'", "note"),
        ("kwargs = dict(attn_implementation='flash_attention_3')", "warning"),
        ("config._attn_implementation = 'flash_attention_2'", "note"),
        ("model = load(use_flash_attention_2=True)", "note"),
        ("kwargs = dict(attn_implementation='sdpa')", None),
        ("def f():\n    from rwkv.model import RWKV\n    return RWKV(strategy='cuda:0 fp16')", "warning"),
        ("import onnxruntime as ort\nort.InferenceSession(p, providers=['CUDAExecutionProvider'])", "warning"),
        ("import ctranslate2\nctranslate2.Generator(p, device='cpu')", None),
        ("import xgboost as xgb\nxgb.XGBClassifier(device='cuda')", "warning"),
    ],
)
def test_attention_and_other_libraries_devices_are_told(line: str, severity: str | None) -> None:
    assert [finding.severity.value for finding in found(by_code("NPK406"), f"{line}\n")] == [severity] * bool(severity)


def test_gpus_that_ray_waits_for_are_reported() -> None:
    text = "import ray\n@ray.remote(num_gpus=1)\nclass A: ...\nA.options(num_gpus=n).remote()\n"
    others = "A.options(num_gpus=0).remote()\nestimate(num_gpus=8)\n"
    assert [finding.place.line for finding in found(by_code("NPK406"), text + others) if finding.place] == [2, 4]
    assert not found(by_code("NPK406"), text.replace("import ray\n", ""))
    assert not found(by_code("NPK406"), text + "A.options(resources={'NPU': n}).remote()\n")


def test_a_comment_ignores_a_finding() -> None:
    text = "import torch\nx = torch.linalg.det(y)  # npukit: ignore[NPK302]\n"
    assert found(by_code("NPK302"), text) == []


def test_a_star_import_may_be_used() -> None:
    (rule,) = [rule for rule in FINDING_RULES if rule.code == "NPK401"]
    star, one = (found(rule, f"from pynvml import {names}\nnvmlInit()\n") for names in ("*", "nvmlShutdown"))
    assert star[0].why != one[0].why


@pytest.mark.parametrize(
    ("text", "severity"),
    [
        ("from torch._six import container_abcs, inf", "error"),
        ("from torch import _six", "error"),
        ("import torch._six as six", "error"),
        ("import torch\nx = torch.solve(b, a)[0]", "error"),
        ("from torch._utils import _accumulate", "error"),
        ("try:\n    from torch._six import inf\nexcept ImportError:\n    from math import inf", "note"),
        ("if TORCH_MAJOR < 2:\n    from torch._six import inf", None),
        ("from ._six import inf\nimport torch", None),
        ("import torch\nx = torch.linalg.solve(a, b)", None),
    ],
)
def test_names_that_torch_no_longer_has(text: str, severity: str | None) -> None:
    assert [finding.severity.value for finding in found(by_code("NPK307"), f"{text}\n")] == [severity] * bool(severity)


def test_a_name_is_reported_for_the_releases_that_lack_it() -> None:
    text = "from torch._utils import _accumulate\n"
    assert not found(by_code("NPK307"), text, goal=Goal(target=Target.of("2.1")))


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("import pytorch_lightning as pl\ntrainer = pl.Trainer(gpus=args.gpus)", 1),
        ("from lightning.pytorch import Trainer\nTrainer(gpus=[0, 1])\nTrainer(gpus=0)\nTrainer(gpus=None)", 1),
        ("trainer = Trainer(gpus=2)", 0),
        ("import lightning as L\nL.Fabric(accelerator='gpu')\nL.Trainer(accelerator='cpu')", 1),
        ("import ray\nray.init(num_gpus=8)\nbundles = [{'GPU': 1, 'CPU': 4}]", 2),
        ("from ray.train import ScalingConfig\nScalingConfig(num_workers=2, use_gpu=True)", 1),
        ("from ray.train import ScalingConfig\nScalingConfig(num_workers=2, use_gpu=False)", 0),
        ("from ray import tune\ntune.run(train, resources_per_trial={'cpu': 2, 'gpu': n})", 1),
        ("import ray\nnames = {'GPU': 'cuda', 'NPU': 'npu'}", 0),
        ("row = {'GPU': 1, 'gpu': 2}\nuse(use_gpu=True)", 0),
        ("import torch\nwith torch.autograd.profiler.profile(use_cuda=True) as prof: pass", 1),
        ("import torch\nwith torch.autograd.profiler.profile(use_cuda=False) as prof: pass", 0),
    ],
)
def test_gpus_that_libraries_choose_are_reported(text: str, count: int) -> None:
    assert len(found(by_code("NPK406"), f"{text}\n")) == count


@pytest.mark.parametrize(
    ("text", "severity"),
    [
        ("x = torch.from_numpy(a).double()", "note"),
        ("x = torch.tensor([1.0, 2.0])\ny = x.to(torch.float64)", "note"),
        ("state = torch.load(path, map_location=device)\ny = state['mean'].double()", "warning"),
        ("x = torch.tensor([1.0]).to(device)\ny = x.double()", "warning"),
        ("x = torch.tensor([1.0], device=device).double()", "warning"),
        ("def f(x):\n    return x.double()", "warning"),
    ],
)
def test_double_precision_on_the_cpu_is_a_note(text: str, severity: str) -> None:
    assert [finding.severity.value for finding in found(by_code("NPK709"), f"import torch\n{text}\n")] == [severity]


def test_processes_that_use_cards_are_counted() -> None:
    text = "import torch.multiprocessing as mp\ndef run(rank):\n    setup(rank)\n"
    setup = "def setup(rank):\n    join('nccl')\nmp.spawn(run, nprocs=4)\n"
    assert len(found(by_code("NPK714"), text + setup)) == 1


def test_a_function_of_the_facts_is_found_by_any_name() -> None:
    text = "from torch.backends.cuda import cufft_plan_cache as cache\ncache.max_size = 10\n"
    assert [finding.subject for finding in found(by_code("NPK201"), text)] == ["torch.backends.cuda.cufft_plan_cache"]
