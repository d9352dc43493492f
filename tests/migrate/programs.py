"""Programs made at random out of what migrate rewrites, and what must hold for each of them.

The tests draw the same programs each time; benchmarks/robustness/fuzz_migrate.py draws new ones and keeps what fails.
"""

from __future__ import annotations

from pathlib import Path

from hypothesis import strategies as st

from npukit.migrate.goal import Goal, Style
from npukit.migrate.migration import migrate_document
from npukit.migrate.selection import Selection
from npukit.source import Unreadable, read

_names = st.sampled_from(["x", "device", "model", "torch", "args.gpu", "f", "torch.cuda", "os.environ", "dist"])
_strings = st.sampled_from(["'cuda'", '"cuda:0"', "f'cuda:{x}'", "'nccl'", "'cpu'", "'npu'", "'a cuda b'"])
_expressions = st.recursive(
    st.one_of(_names, _strings, st.sampled_from(["1", "None", "torch.cuda.is_available()", "x.is_cuda"])),
    lambda inner: st.one_of(
        st.builds("{}.cuda({})".format, _names, inner),
        st.builds("{}.to({})".format, _names, inner),
        st.builds("torch.device({})".format, inner),
        st.builds("torch.cuda.synchronize({})".format, inner),
        st.builds("({} if {} else {})".format, inner, inner, inner),
        st.builds("({} == {})".format, inner, inner),
        st.builds("({} in {})".format, inner, inner),
        st.builds("g({}, device={})".format, inner, inner),
        st.builds("{{'device': {}, 'cuda': {}}}".format, inner, inner),
        st.builds("(lambda device={}: {})".format, inner, inner),
        st.builds("torch.load({}, map_location={{'cuda:0': {}}})".format, inner, inner),
        st.builds("torch.cuda.max_memory_allocated({})".format, inner),
        st.builds("torch.cuda.amp.GradScaler(enabled={})".format, inner),
        st.builds("(device.type == {})".format, inner),
        st.builds("[{}, {}]".format, inner, inner),
        st.builds("f'{{{}}}:{{{}}}'".format, _names, _names),
        st.builds("('cuda' in str({}))".format, inner),
        st.builds("(not {}.is_cuda)".format, _names),
        st.builds("(str(device)[:4] == {})".format, inner),
        st.builds("(x.type() == 'torch.cuda.HalfTensor' and {})".format, inner),
        st.builds("x.type(torch.cuda.FloatTensor if {} else torch.cuda.HalfTensor)".format, inner),
        st.builds("{{'cuda': {}, 'cpu': 1}}[device]".format, inner),
        st.builds("'cuda:%d' % {}".format, inner),
        st.builds("'cuda:{{}}'.format({})".format, inner),
        st.builds("load({}, device_map={{'': 'cuda:0'}})".format, inner),
    ),
    max_leaves=6,
)
_statements = st.one_of(
    _expressions,
    st.builds("{} = {}".format, st.sampled_from(["x", "device", "backend", "cfg['device']", "DEVICE"]), _expressions),
    st.builds("if {}: {}".format, _expressions, _expressions),
    st.builds("def h(device={}, y=1):\n    return {}".format, _expressions, _expressions),
    st.builds("with torch.cuda.amp.autocast({}):\n    {}".format, _expressions, _expressions),
    st.just("torch.cuda.empty_cache()"),
    st.builds("if torch.cuda.is_available():\n    c = torch.cuda.get_device_capability({})".format, _expressions),
    st.builds("def k():\n    import torch\n    torch.cuda.synchronize({})".format, _expressions),
    st.builds("if not torch.cuda.is_available(): raise ValueError({})".format, _expressions),
    st.builds("use = torch.cuda.is_available()\nz = {} if use else 'triton'".format, _expressions),
    st.builds("os.system('CUDA_VISIBLE_DEVICES=0 python t.py' + {})".format, _expressions),
    st.just("import torch.cuda.amp as amp"),
    st.just("from torch.cuda import synchronize, nvtx"),
    st.just("from torch.cuda.amp import autocast, GradScaler"),
    st.just("from torch.cuda.amp import GradScaler, custom_fwd"),
    st.builds(
        "@torch.cuda.amp.custom_bwd\ndef b(x, device=None): return custom_fwd({}).cuda(device)".format, _expressions
    ),
    st.builds("backend = given or 'nccl' if {} else 'cpu:gloo,cuda:nccl'".format, _expressions),
    st.builds("os.environ['CUDA_VISIBLE_DEVICES'] = {}".format, _expressions),
    st.builds("torch.distributed.init_process_group({}, device_id={})".format, _expressions, _expressions),
    st.builds("torch.cuda.manual_seed_all({0})\ntorch.manual_seed({0})".format, _expressions),
    st.builds("class C:\n    device = {}\n    def cuda(self): return {}".format, _expressions, _expressions),
    st.builds("for device in {}:\n    {}".format, _expressions, _expressions),
)
PROGRAMS = st.lists(_statements, min_size=1, max_size=5).map(
    lambda lines: "import os\nimport torch\n" + "\n".join(lines)
)


def trouble(program: str, style: Style, torch: str = "") -> str | None:
    """What is wrong with the migration of a program: a rule fails, the result does not parse, or changes once more."""
    goal = Goal(style, oldest_torch=torch, newest_torch=torch)
    rules = Selection().rules()
    change, left = migrate_document(read(Path("a.py"), program.encode()), rules, goal)
    try:
        again, later = migrate_document(read(Path("a.py"), (change.after if change else program).encode()), rules, goal)
    except Unreadable as error:
        return f"does not parse: {error}\n{change.after if change else program}"
    if broken := [finding for finding in (*left, *later) if finding.code == "NPK002"]:
        return broken[0].what
    return None if again is None else f"a second run changes it again:\n{again.diff(Path())}"
