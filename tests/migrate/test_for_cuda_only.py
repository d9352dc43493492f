"""Tests and files for CUDA only stay as they are and are reported; what NPUs can do beside them is migrated."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from npukit.migrate.migration import Migration, migrate
from npukit.report import Severity

SKIP = "@pytest.mark.skipif(not torch.cuda.is_available(), reason='needs a GPU')\n"
BODY = "    x = torch.ones(1, device='cuda')\n"


def migrated(folder: Path, **files: str) -> Migration:
    for name, text in files.items():
        path = folder / name.replace("__", "/")
        path.parent.mkdir(exist_ok=True, parents=True)
        path.with_suffix(".py").write_text(f"import pytest\nimport torch\n{text}")
        ast.parse(text)
    return migrate(folder)


@pytest.mark.parametrize(
    "text",
    [
        f"import ops\nfrom ops import kernel\n{SKIP}class TestIt:\n"
        " def setUp(self): self.device = torch.device('cuda')\n"
        " def test_it(self): kernel(torch.ones(1, device=self.device))\n",
        f"from ops import kernel\nneeds_gpu = {SKIP[1:]}@needs_gpu\ndef test_it():\n{BODY}    kernel(x)\n",
        f"pytestmark = [{SKIP[1:].strip()}]\nfrom ops import kernel\n"
        f"def make():\n    return torch.ones(1, device='cuda')\ndef test_it():\n{BODY}    kernel(make())\n",
        f"@pytest.mark.skipif(torch.cuda.device_count() < 2, reason='needs two GPUs')\ndef test_fp8():\n{BODY}",
        f"def test_it():\n    if torch.cuda.device_count() < 2: pytest.skip('TileLang needs CUDA')\n{BODY}",
        f"{SKIP}@pytest.mark.skipif(not HAVE_OPS, reason='Triton 3 is not installed')\ndef test_it():\n{BODY}",
        "from ops import kernel\n@pytest.fixture\ndef device():\n    if not torch.cuda.is_available():\n"
        "        pytest.skip('no GPU')\n    return torch.device('cuda')\n"
        "@pytest.fixture\ndef x(device):\n    return torch.ones(1, device=device)\n"
        "def test_it(x):\n    kernel(x)\ndef test_both(device):\n    kernel(torch.ones(1, device='cuda'))\n",
        "from ops import kernel\nclass TestIt:\n def setup_method(self):\n"
        "  if not torch.cuda.is_available(): pytest.skip('no GPU')\n  self.x = torch.ones(1, device='cuda')\n"
        " def test_it(self): kernel(self.x)\n",
        f"from core.transformer_engine import TELinear\n{SKIP}def test_it():\n{BODY}    TELinear()(x)\n",
    ],
)
def test_what_is_skipped_for_the_sake_of_kernels_stays_and_is_reported(tmp_path: Path, text: str) -> None:
    result = migrated(tmp_path, ops="import triton\ndef kernel(x): ...\n", test_it=text)
    assert not result.changes
    notes = [finding for finding in result.left if finding.place and finding.place.file.name == "test_it.py"]
    assert [note.code for note in notes] == ["NPK101"]


@pytest.mark.parametrize(
    "text",
    [
        f"{SKIP}def test_it():\n{BODY}",
        f"from ops import kernel\nneeds_gpu = {SKIP[1:]}"
        f"@needs_gpu\ndef test_it(): kernel()\n@needs_gpu\ndef test_b():\n{BODY}",
        f"@pytest.mark.skipif(torch.cuda.device_count() < 2, reason='needs two GPUs')\ndef test_it():\n{BODY}",
        "from ops import kernel\n@pytest.fixture\ndef device():\n    if not torch.cuda.is_available():\n"
        "        pytest.skip('no GPU')\n    return torch.device('cuda')\n"
        "def test_it(device): kernel(device)\ndef test_sum(device): torch.ones(1, device=device).sum()\n",
        "device = torch.device('cuda' if torch.cuda.is_available() else 'cpu')\n"
        "if device.type == 'cpu': raise SystemExit('too slow')\n",
    ],
)
def test_what_is_skipped_without_any_accelerator_is_migrated(tmp_path: Path, text: str) -> None:
    result = migrated(tmp_path, ops="import triton\ndef kernel(x): ...\n", test_it=text)
    assert (
        "torch.accelerator." in result.changes[0].after and "'cuda'" not in result.changes[0].after.split("import")[-1]
    )


@pytest.mark.parametrize("name", ["nccl_allocator", "nvshmem__planner", "kernels__cuda__scan"])
def test_a_file_named_after_something_of_cuda_stays_and_is_told_once(tmp_path: Path, name: str) -> None:
    result = migrated(
        tmp_path, **{name: "torch.cuda.synchronize()\npool = torch.cuda.MemPool()\n" + SKIP + "def f(): ...\n"}
    )
    assert not result.changes
    assert [(finding.code, finding.severity) for finding in result.left] == [("NPK101", Severity.note)]


def test_a_device_for_a_method_that_cannot_be_found_is_reported(tmp_path: Path) -> None:
    result = migrated(tmp_path, a="tensor.init_data('cuda')\nlog.info('cuda')\nhasattr(torch, 'cuda')\n")
    assert [(finding.code, finding.place.line) for finding in result.left if finding.place] == [("NPK111", 3)]


def test_the_current_device_is_what_a_device_without_a_number_is(tmp_path: Path) -> None:
    text = "x = torch.ones(1, device=torch.cuda.current_device())\ny = x.to(torch.cuda.current_device())\n"
    after = migrated(tmp_path, a=text).changes[0].after
    index = "torch.accelerator.current_device_index()"
    assert after.endswith(f"x = torch.ones(1, device={index})\ny = x.to({index})\n")


@pytest.mark.parametrize(
    "skip",
    [
        'if not HAVE_GTP:\n    pytest.skip("needs TransformerEngine 2.19", allow_module_level=True)',
        'pytestmark = [pytest.mark.slow, pytest.mark.skipif(not HAVE, reason="needs DeepGEMM")]',
        'te = pytest.importorskip("transformer_engine")',
    ],
)
def test_tests_that_all_need_a_library_for_cuda_stay(tmp_path: Path, skip: str) -> None:
    migration = migrated(
        tmp_path, test_a=f"{skip}\ndef test_it():\n    run(torch.zeros(1).cuda())\n    torch.cuda.synchronize()\n"
    )
    assert not migration.changes and [finding.code for finding in migration.left] == ["NPK101"]


def test_tests_that_all_need_a_gpu_are_migrated(tmp_path: Path) -> None:
    skip = 'if not torch.cuda.is_available():\n    pytest.skip("needs a GPU", allow_module_level=True)'
    after = migrated(tmp_path, test_a=f"{skip}\ndef test_it():\n    torch.cuda.synchronize()\n").changes[0].after
    assert "torch.cuda.synchronize" not in after


def test_cards_that_nvidia_smi_names_are_no_npus(tmp_path: Path) -> None:
    # Where there is no nvidia-smi the value is empty, and an empty list hides every NPU.
    (tmp_path / "direct.sh").write_text("export CUDA_VISIBLE_DEVICES=$(nvidia-smi -L | wc -l)\n")
    (tmp_path / "other.sh").write_text("CARDS=$(cat cards)\nexport CUDA_VISIBLE_DEVICES=$CARDS\n")
    migration = migrated(tmp_path)
    assert [change.path.name for change in migration.changes] == ["other.sh"]
    codes = {(finding.place.file.name, finding.code) for finding in migration.left if finding.place}
    assert codes == {("direct.sh", "NPK207")}


def test_a_call_within_brackets_is_broken_at_its_own(tmp_path: Path) -> None:
    head = f"x = '{'x' * 91}'\n" * 100
    call = f"torch.distributed.all_reduce_with_{'name' * 9}(value, torch.cuda.current_stream())"
    after = migrated(tmp_path, a=f"{head}y = (\n    {call}\n    / 2\n)\n").changes[0].after
    assert max(map(len, after.split("y = (")[1].splitlines())) <= 98 and "    )\n    / 2\n)\n" in after


def test_a_list_within_a_line_is_broken_at_the_width_that_the_project_keeps(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.black]\nline-length = 127\n")
    short = f"y = [f(i, device='cuda', name='{'n' * 36}') if isinstance(i, torch.Tensor) else i for i in x]\n"
    after = migrated(tmp_path, a=short + short.replace("n" * 36, "n" * 41)).changes[0].after
    lines = after.splitlines()[-4:]
    assert len(lines[0]) > 120 and lines[1:] == ["y = [", f"    {lines[2].strip()}", "]"]


def test_a_chain_of_calls_is_put_into_brackets_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.black]\nline-length = 80\n")
    chain = "made(').a(', 2).repeat((3, 1)[0], {})"
    fits, does_not = (chain.format("n" * (79 - len(f"{name} = {chain[:-2]}).cuda()"))) for name in ("long_name", "y"))
    after = migrated(tmp_path, a=f"long_name = {fits}.cuda()\ny = {does_not}.cuda()\n").changes[0].after
    assert f"\nlong_name = (\n    {fits}.to(DEVICE)\n)\n" in after
    broken = does_not.replace(".repeat", "\n    .repeat")
    assert f"\ny = (\n    {broken}\n    .to(DEVICE)\n)\n" in after


def test_a_script_for_isaac_gym_stays(tmp_path: Path) -> None:
    assert not migrated(tmp_path, a="import isaacgym\ndevice = torch.device('cuda')\n").changes


GRAPHS = (
    "class CUDAGraphRunner:\n    def __init__(self): self.stream = torch.cuda.Stream()\n",
    "def capture(step, x):\n    stream = torch.cuda.Stream()\n    graph = torch.cuda.CUDAGraph()\n    step(x.cuda())\n",
    "def replay_cuda_graph(runner):\n    runner.stream.wait_stream(torch.cuda.current_stream())\n",
)


@pytest.mark.parametrize("text", GRAPHS)
def test_code_around_a_graph_stays_as_a_whole_and_is_told_once(tmp_path: Path, text: str) -> None:
    result = migrated(tmp_path, a=text, b="stream = torch.cuda.Stream()\n")
    assert [change.path.name for change in result.changes] == ["b.py"]
    assert [finding.what.split()[-2:] for finding in result.left if finding.code == "NPK101"] == [["CUDA", "graphs"]]


def test_a_file_of_graphs_stays(tmp_path: Path) -> None:
    assert not migrated(tmp_path, cuda_graphs="stream = torch.cuda.Stream()\n").changes


LAYOUT = """def f(model, wanted, device_type):
    supported = device_type == "cuda" or (device_type == "cpu" and mkldnn)
    if wanted is None:
        wanted = device_type == "cpu" and supported
    if wanted and not supported:
        print("ignored")
    model.to(memory_format=torch.channels_last if wanted and supported else torch.contiguous_format)
"""
BOTH = "if torch.cuda.is_available():\n    m = m.cuda()\n    m = m.to(memory_format=torch.channels_last)\n"


def test_a_name_that_holds_a_condition_is_followed_to_all_its_uses(tmp_path: Path) -> None:
    assert not migrated(tmp_path, a=LAYOUT).changes
    assert not migrated(tmp_path, a=BOTH.replace("m = m.cuda()", "pass")).changes


def test_what_is_for_npus_as_well_takes_a_memory_format_along(tmp_path: Path) -> None:
    assert (
        "if torch.accelerator.is_available():\n    m = m.to(torch.accelerator.current_accelerator())\n"
        in migrated(tmp_path, a=BOTH).changes[0].after
    )


@pytest.mark.parametrize(
    "check",
    [
        "return torch.cuda.is_available()",
        "if not torch.cuda.is_available():\n        return False\n    return True",
        "if torch.cuda.is_available():\n        return True\n    else:\n        return False",
    ],
)
def test_a_function_that_returns_a_condition_is_judged_by_its_callers(tmp_path: Path, check: str) -> None:
    asks = f"def check():\n    {check}\ndef use():\n    found = check()\n    if not found: return\n"
    assert not migrated(tmp_path, a=f"{asks}    os.environ['TORCH_CUDA_ARCH_LIST'] = '8.0'\n").changes
    assert migrated(tmp_path, a=f"{asks}    model.cuda()\n").changes


def test_probes_of_compiled_operators_stay(tmp_path: Path) -> None:
    body = "pyg_lib.ops.matmul(torch.ones(1, device='cuda'))"
    probe = f"    try:\n        {body}\n    except RuntimeError:\n        OK = False\n"
    assert not migrated(tmp_path, a=f"if 'pytest' in sys.modules and torch.cuda.is_available():\n{probe}").changes


def test_a_guard_of_a_compiled_optimizer_stays(tmp_path: Path) -> None:
    loads = (
        "if torch.cuda.is_available():\n    op = Loader().load().multi_tensor_adam\n    x = torch.cuda.IntTensor([0])\n"
    )
    assert not migrated(tmp_path, a=loads).changes


def test_a_backend_that_a_method_of_the_files_own_class_gets(tmp_path: Path) -> None:
    text = (
        "import torch.distributed as dist\nclass Groups:\n    def get(self, ranks, backend='nccl'):\n"
        "        return dist.new_group(ranks, backend=backend)\nGROUPS = None\n"
        "def make(ranks):\n    global GROUPS\n    GROUPS = Groups()\n    GROUPS.get(ranks, 'nccl')\n"
        "def options(table):\n    return table.get('name', 'nccl')\n"
    )
    after = migrated(tmp_path, a=text).changes[0].after
    assert "GROUPS.get(ranks, BACKEND)" in after
    assert "table.get('name', 'nccl')" in after


def test_the_number_of_the_current_card(tmp_path: Path) -> None:
    name = "f'cuda:{torch.cuda.current_device()}'"
    text = f"here = {name}\nx.cuda({name})\ntorch.device(here)\n"
    after = migrated(tmp_path, a=text).changes[0].after
    index = "{torch.accelerator.current_device_index()}"
    assert f"here = f'{{DEVICE_TYPE}}:{index}'\nx.to(f'{{DEVICE_TYPE}}:{index}')\n" in after


def test_a_function_that_moves_to_cuda_is_no_kernel(tmp_path: Path) -> None:
    text = "from batch import move_batch_to_cuda\ndef f(x, stream):\n    if x.is_cuda: x.record_stream(stream)\n"
    assert 'x.device.type in ("cuda", "npu")' in migrated(tmp_path, a=text).changes[0].after


OPTIONAL_KERNELS = """try:
    import triton
except ImportError:
    triton = MagicMock()
@triton.jit
def _scale(x): ...
class Scale(torch.autograd.Function):
    def forward(ctx, x):
        _scale[(1,)](x)
def scale(x): return Scale.apply(x)
def scale_anywhere(x):
    if HAVE_TRITON:
        return scale(x)
    return x * 2
"""


@pytest.mark.parametrize("use", ["    scale(x)\n", "    _check(x)\n"])
def test_a_file_that_imports_without_its_compiler_needs_it_to_launch(tmp_path: Path, use: str) -> None:
    head = "try:\n    from ops import scale\nexcept Exception:\n    scale = None\n"
    helper = "def _check(x):\n    y = torch.ones(1, device='cuda')\n    assert scale(x) == y\n"
    result = migrated(tmp_path, ops=OPTIONAL_KERNELS, test_it=f"{head}{helper}{SKIP}def test_it():\n{BODY}{use}")
    assert not result.changes
    assert all(SKIP in change.after for change in result.changes)


def test_a_function_that_does_without_kernels_where_there_are_none_is_tested_anywhere(tmp_path: Path) -> None:
    text = f"from ops import scale_anywhere\n{SKIP}def test_it():\n{BODY}    scale_anywhere(x)\n"
    assert (
        "not torch.accelerator.is_available()"
        in migrated(tmp_path, ops=OPTIONAL_KERNELS, test_it=text).changes[0].after
    )


def test_what_prepares_a_capture_stays_with_it(tmp_path: Path) -> None:
    assert not migrated(tmp_path, engine=f"def replay_cuda_graph():\n{BODY}").changes


def test_tensors_in_cuda_s_managed_memory_are_asked_for_cuda(tmp_path: Path) -> None:
    text = "def advise(x):\n    if not x.is_cuda: return\n    advise_managed_tensor_location(x)\n"
    assert not migrated(tmp_path, ours=text).changes


@pytest.mark.parametrize(
    "test",
    [
        "HAVE_TE and new",
        "HAS_APEX",
        "is_flash_attn_available()",
    ],
)
def test_what_an_option_for_cuda_turns_on_stays(tmp_path: Path, test: str) -> None:
    text = f"def f(self, args):\n    if {test}:\n        return torch.zeros(1, device='cuda')\n"
    assert not migrated(tmp_path, a=text).changes
    other = text.replace(test, "args.fast")
    assert migrated(tmp_path, a=other).changes
    below = "    return torch.zeros(1, device='cuda')\n"
    for ends in (f"    if not ({test}):\n        return\n", f"    assert {test}\n"):
        assert not migrated(tmp_path, a=f"def f(self, args):\n{ends}{below}").changes


def test_the_copy_service_named_nccl_is_no_backend(tmp_path: Path) -> None:
    text = "def get(backend):\n if backend == 'nccl':\n  return A()\n elif backend == 'nvshmem':\n  return B()\n"
    assert not migrated(tmp_path, a=text).changes


def test_variables_of_transformer_engine_do_not_make_a_test_one_of_it(tmp_path: Path) -> None:
    text = (
        "import os\nclass TestGrads:\n def setup_method(self):\n  os.environ.pop('NVTE_FLASH_ATTN', None)\n"
        " @pytest.mark.skipif(not torch.cuda.is_available(), reason='')\n"
        " def test_a(self):\n  x = torch.zeros(1).cuda()\n"
    )
    assert migrated(tmp_path, test_a=text).changes


def test_what_an_older_torch_needs_stays(tmp_path: Path) -> None:
    text = (
        "if is_torch_min_version('2.4.0a0'):\n    fwd = partial(torch.amp.custom_fwd, device_type='cuda')\n"
        "else:\n    fwd = torch.cuda.amp.custom_fwd\n"
    )
    (change,) = migrated(tmp_path, a=text).changes
    assert change.after.endswith("else:\n    fwd = torch.cuda.amp.custom_fwd\n")


def test_a_function_that_is_skipped_without_nvml_stays_in_a_script_as_well(tmp_path: Path) -> None:
    text = (
        "try:\n    from pynvml import *\n    NOT_NVML = False\nexcept ImportError:\n    NOT_NVML = True\n"
        "@pytest.mark.skipif(NOT_NVML, reason='pynvml is not installed')\n"
        "def train():\n    torch.cuda.synchronize()\n"
    )
    assert not migrated(tmp_path, train=text).changes
    (change,) = migrated(tmp_path, train=f"{text}def other():\n    torch.cuda.synchronize()\n").changes
    assert change.after.count("torch.cuda.synchronize()") == 1


BUILD = (
    "from torch.utils.cpp_extension import load\n"
    "_backend = load(name='_scan', sources=['scan.cu'])\n__all__ = ['_backend']\n"
)
SETUP = (
    "from torch.utils.cpp_extension import CUDAExtension\n"
    "modules = [CUDAExtension('_scan', ['scan.cu']), CUDAExtension(name='ops.selective_sweep', sources=['s.cu'])]\n"
)
SCAN = (
    "from torch.cuda.amp import custom_fwd\nclass Scan(torch.autograd.Function):\n    @staticmethod\n"
    "    @custom_fwd\n    def forward(ctx, x):\n        if not x.is_cuda: x = x.cuda()\n        return {}.scan(x)\n"
)


@pytest.mark.parametrize(
    "text",
    [
        "try:\n    import _scan as _backend\nexcept ImportError:\n    from .backend import _backend\n"
        + SCAN.format("_backend"),
        "BACKEND = None\ndef get_backend():\n    global BACKEND\n    if BACKEND is None:\n        try:\n"
        "            import _scan as _backend\n        except ImportError:\n"
        "            from .backend import _backend\n        BACKEND = _backend\n    return BACKEND\n"
        + SCAN.format("get_backend()"),
        "from ._ext import scan as _backend\n" + SCAN.format("_backend"),
        "import selective_sweep as _backend\n" + SCAN.format("_backend"),
    ],
)
def test_what_calls_an_extension_that_the_project_builds_from_cuda_sources_stays(tmp_path: Path, text: str) -> None:
    assert not migrated(tmp_path, ops__scan=text, ops__setup=SETUP, ops__backend=BUILD).changes


def test_tests_of_an_extension_stay_and_plain_modules_with_an_underscore_do_not(tmp_path: Path) -> None:
    kernel = "from ._ext import scan\ndef run(x): return scan.forward(x)\n"
    assert not migrated(
        tmp_path / "a", ops__scan=kernel, ops__test="from scan import run\nrun(torch.ones(1).cuda())\n"
    ).changes
    plain = "import _jsonnet\nfrom ._tools import move_to_cuda\nmodel = load(_jsonnet.evaluate('x')).cuda()\n"
    tools = "def move_to_cuda(x): return x.cuda()\n"
    assert len(migrated(tmp_path / "b", ops__train=plain, ops___tools=tools).changes) == 2


INDICES = "from . import indices_ext\ndef convolve(x):\n    if x.dim() == 3: return indices_ext.forward(x)\n"
BOXES = (
    "from ours.iou import iou_cuda\nclass Boxes:\n    def overlaps(self, a, b):\n"
    "        if len(a) * len(b) == 0:\n            return a.new_zeros(len(a), len(b))\n"
    "        return iou_cuda.overlaps(a.cuda(), b.cuda())\n"
)


def test_helpers_in_a_file_of_tests_stay_with_the_tests(tmp_path: Path) -> None:
    text = f"import _scan\ndef copy(x): return x.clone().cuda()\ndef test_it():\n{BODY}    _scan.run(copy(x))\n"
    assert not migrated(tmp_path, setup=SETUP, unit_test=text).changes


def test_extensions_in_packages_of_the_project_are_followed(tmp_path: Path) -> None:
    setup = "modules = [make_cuda_ext(name='indices_ext', sources=['indices.cu'])]\n"
    sparse = "from . import indices\n" + SCAN.format("indices").replace(".scan(", ".convolve(")
    assert not migrated(tmp_path / "a", ops__indices=INDICES, ops__sparse=sparse, setup=setup).changes
    package = tmp_path / "b/ours/iou/__init__.py"
    package.parent.mkdir(parents=True)
    package.write_text("")
    assert not migrated(tmp_path / "b", boxes=BOXES).changes
    package.write_text("def iou_cuda(a, b): return a\n")
    assert migrated(tmp_path / "b", boxes=BOXES).changes


def test_a_device_that_only_another_library_is_given_stays(tmp_path: Path) -> None:
    text = (
        "from faster_whisper import WhisperModel\ndevice = 'cuda' if torch.cuda.is_available() else 'cpu'\n"
        "model = WhisperModel('tiny', device=device)\n"
    )
    assert not migrated(tmp_path / "a", a=text).changes
    assert migrated(tmp_path / "b", a=f"{text}x = torch.ones(1).to(device)\n").changes


def test_numba_on_the_host_shows_nothing(tmp_path: Path) -> None:
    replay = "from numba import njit\n@njit\ndef returns(x): return x\n"
    result = migrated(tmp_path, replay=replay, test_it=f"from replay import returns\ndef test_it():\n{BODY}")
    assert [change.path.name for change in result.changes] == ["test_it.py"]


def test_a_class_for_cuda_beside_those_for_other_devices_stays(tmp_path: Path) -> None:
    base = "class BaseChecker:\n    def check(self): ...\n"
    check = "    def check(self):\n        if not torch.cuda.is_available(): self.fail()\n"
    result = migrated(
        tmp_path,
        checks__base=base,
        checks__cuda=f"from .base import BaseChecker\nclass CudaChecker(BaseChecker):\n{check}",
        timer=f"class CudaTimer:\n{check}",
    )
    assert [change.path.name for change in result.changes] == ["timer.py"]


def test_a_file_that_calls_the_device_ascend_chooses_by_itself(tmp_path: Path) -> None:
    names = "DEVICES = ('cuda', 'ascend')\n"
    result = migrated(
        tmp_path, names=names + "def make(config): return torch.ones(1, device=config.get('d', 'cuda'))\n"
    )
    assert not result.changes


def test_a_library_of_the_facts_is_known_everywhere(tmp_path: Path) -> None:
    text = "try:\n    import gsplat\nexcept ImportError:\n    gsplat = None\n"
    text += "def render(x):\n    assert gsplat is not None\n    return gsplat.rasterization(x.cuda())\n"
    text += "def place(x):\n    return x.cuda()\n"
    after = migrated(tmp_path, a=text, b="import gsplat\ny.cuda()\n").changes
    assert [change.path.name for change in after] == ["a.py"] and after[0].after.count(".cuda()") == 1


TILE = "import cuda.tile as ct\ndef scan(x):\n    ct.launch(torch.cuda.current_stream(), (1,), kernel, (x,))\n"
FLEX = "def is_flex_attention_supported():\n    return infer_device() in ['cuda']\n"
COMPILED = "f = torch.compile(f, backend='inductor' if torch.cuda.is_available() else 'aot_eager')\n"
BF16 = (
    "import torch.cuda.nccl as nccl\n"
    "OK = torch.version.cuda and torch.cuda.is_bf16_supported() and nccl.version() > (2, 9)\n"
)


@pytest.mark.parametrize("text", [TILE, FLEX, COMPILED, BF16])
def test_what_torch_or_a_compiler_has_for_cuda_only_stays(tmp_path: Path, text: str) -> None:
    assert not migrated(tmp_path, a=text).changes


def test_a_file_that_imports_a_module_of_torch_cuda_is_migrated(tmp_path: Path) -> None:
    (change,) = migrated(tmp_path, a=f"{BF16}x.cuda()\n").changes
    assert change.after.count("torch.cuda.is_bf16_supported()") == 1 and "x.to(" in change.after


def test_what_follows_an_else_that_leaves_is_guarded(tmp_path: Path) -> None:
    guard = "try:\n    import flash_attn\n    HAVE_FA = True\nexcept ImportError:\n    HAVE_FA = False\n"
    text = "def f(x):\n    if HAVE_FA:\n        scale = 2\n    else:\n        return x\n    return x.cuda() * scale\n"
    assert not migrated(tmp_path, a=guard + text).changes
    assert migrated(tmp_path, a=guard + text.replace("return x\n", "scale = 1\n")).changes


FLAGS = (
    "def build(sources, extra_cuda_cflags=None):\n    if torch.cuda.is_available():\n"
    "        extra_cuda_cflags = ['-O3']\n    return compile(sources, extra_cuda_cflags)\n"
)
OPTIONAL = (
    "try:\n    import triton\n    HAVE = True\nexcept ImportError:\n    HAVE = False\n"
    "if HAVE:\n    @triton.jit\n    def _kernel(x): ...\ndef scan(x):\n    _kernel[(1,)](x)\n"
)


def test_a_choice_of_compiler_flags_stays(tmp_path: Path) -> None:
    assert not migrated(tmp_path, ops=FLAGS).changes


def test_a_function_that_imports_an_optional_kernel_for_itself_stays(tmp_path: Path) -> None:
    main = f"def main():\n    from ops import scan as fast\n{BODY}    fast(x)\n"
    assert not migrated(tmp_path, ops=OPTIONAL, bench=main).changes


def test_a_package_below_src_is_looked_up(tmp_path: Path) -> None:
    kernel = "import triton\n@triton.jit\ndef _kernel(x): ...\ndef scan(x):\n    _kernel[(1,)](x)\n"
    test = f"{SKIP}def test_it():\n    from ours.ops import scan\n{BODY}    scan(x)\n"
    assert not migrated(tmp_path, src__ours____init__="", src__ours__ops=kernel, tests__test_it=test).changes
