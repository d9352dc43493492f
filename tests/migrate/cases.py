# ruff: noqa: E501
"""What becomes of single lines, below the imports in HEAD: (before, npu, portable); SAME is unchanged."""

from __future__ import annotations

HEAD = """import os
import argparse
import torch
import torch as th
import torch.nn as nn
import torch.distributed as dist
from torch.cuda.amp import autocast, GradScaler
from torch.cuda import amp
from torch import cuda
"""
SAME = None

CASES: list[tuple[str, str | None, str | None]] = [
    # functions of torch.cuda
    (
        "with torch.cuda.amp.autocast(True, torch.bfloat16): f()",
        'with torch.amp.autocast("npu", enabled=True, dtype=torch.bfloat16): f()',
        'with torch.amp.autocast("npu" if hasattr(torch, "npu") else "cuda", enabled=True, dtype=torch.bfloat16): f()',
    ),
    (
        "with torch.cuda.amp.autocast(\n    enabled=True,\n    dtype=d,\n): pass",
        'with torch.amp.autocast("npu",\n    enabled=True,\n    dtype=d,\n): pass',
        'with torch.amp.autocast("npu" if hasattr(torch, "npu") else "cuda",\n    enabled=True,\n    dtype=d,\n): pass',
    ),
    ('d = torch.device("cuda:%d" % i)', 'd = torch.device("npu:%d" % i)', 'd = torch.device(f"{DEVICE_TYPE}:%d" % i)'),
    (
        'd = torch.device("cuda:" + str(i))',
        'd = torch.device("npu:" + str(i))',
        'd = torch.device(f"{DEVICE_TYPE}:" + str(i))',
    ),
    ("torch.cuda.is_available()", "torch.npu.is_available()", "torch.accelerator.is_available()"),
    ('available = {"cpu": True, "cuda": torch.cuda.is_available()}', SAME, SAME),
    ("th.cuda.is_available()", "th.npu.is_available()", "torch.accelerator.is_available()"),
    ("cuda.is_available()", "torch.npu.is_available()", "torch.accelerator.is_available()"),
    ("n = torch.cuda.device_count()", "n = torch.npu.device_count()", "n = torch.accelerator.device_count()"),
    ("torch.cuda.set_device(rank)", "torch.npu.set_device(rank)", "torch.accelerator.set_device_index(rank)"),
    ("torch.cuda.synchronize()", "torch.npu.synchronize()", "torch.accelerator.synchronize()"),
    ("f = torch.cuda.synchronize", "f = torch.npu.synchronize", "f = torch.accelerator.synchronize"),
    ("torch.cuda.current_device()", "torch.npu.current_device()", "torch.accelerator.current_device_index()"),
    (
        "torch.cuda.mem_get_info(torch.cuda.current_device())",
        "torch.npu.mem_get_info(torch.npu.current_device())",
        "device_module.mem_get_info(torch.accelerator.current_device_index())",
    ),
    (
        "y = x.new_ones(3, device=torch.cuda.current_device())",
        "y = x.new_ones(3, device=torch.npu.current_device())",
        "y = x.new_ones(3, device=torch.accelerator.current_device_index())",
    ),
    (
        "y = x.new_full((2,), 0, device='cuda')",
        "y = x.new_full((2,), 0, device='npu')",
        "y = x.new_full((2,), 0, device=torch.accelerator.current_accelerator())",
    ),
    ("s = torch.cuda.Stream()", "s = torch.npu.Stream()", "s = torch.Stream()"),
    (
        "x = torch.cuda.current_stream().wait_stream(s)",
        "x = torch.npu.current_stream().wait_stream(s)",
        "x = torch.accelerator.current_stream().wait_stream(s)",
    ),
    (
        "torch.cuda.empty_cache()",
        "torch.npu.empty_cache()",
        "device_module.empty_cache()",
    ),
    (
        "if use_cuda: torch.cuda.empty_cache()",
        "if use_cuda: torch.npu.empty_cache()",
        "if use_cuda: device_module.empty_cache()",
    ),
    (
        "m = torch.cuda.max_memory_allocated() / MB",
        "m = torch.npu.max_memory_allocated() / MB",
        "m = device_module.max_memory_allocated() / MB",
    ),
    (
        "torch.cuda.manual_seed(3)",
        "torch.npu.manual_seed(3)",
        "device_module.manual_seed(3)",
    ),
    (
        "torch.cuda.manual_seed_all(s)",
        "torch.npu.manual_seed_all(s)",
        "device_module.manual_seed_all(s)",
    ),
    (
        "torch.manual_seed(s)\ntorch.cuda.manual_seed(s)",
        "torch.manual_seed(s)\ntorch.npu.manual_seed(s)",
        SAME,
    ),
    (
        "try: f()\nexcept torch.cuda.OutOfMemoryError: pass",
        "try: f()\nexcept torch.OutOfMemoryError: pass",
        "try: f()\nexcept torch.OutOfMemoryError: pass",
    ),
    (
        "c = torch.cuda.Stream if x else torch.cuda.Event",
        "c = torch.npu.Stream if x else torch.npu.Event",
        "c = torch.Stream if x else torch.Event",
    ),
    (
        "tc = torch.cuda\ntc.synchronize()",
        "tc = torch.npu\ntc.synchronize()",
        'tc = torch.npu if hasattr(torch, "npu") else torch.cuda\ntc.synchronize()',
    ),
    (
        'print(f"{torch.cuda.device_count()} cards")',
        'print(f"{torch.npu.device_count()} cards")',
        'print(f"{torch.accelerator.device_count()} cards")',
    ),
    (
        "from torch.cuda.memory import CUDAPluggableAllocator as A\nA(s)",
        "torch.npu.NPUPluggableAllocator(s)",
        SAME,
    ),
    ("g = torch.cuda.CUDAGraph()", "g = torch.npu.NPUGraph()", SAME),
    (
        "from torch.cuda import OutOfMemoryError, empty_cache\ndef f():\n    empty_cache()",
        "from torch.cuda import OutOfMemoryError, empty_cache\ndef f():\n    torch.npu.empty_cache()",
        "from torch.cuda import OutOfMemoryError, empty_cache\ndef f():\n    device_module.empty_cache()",
    ),
    (
        "def f(s: torch.cuda.Stream, e: 'x' = None) -> list[torch.cuda.Event]: pass",
        "def f(s: torch.npu.Stream, e: 'x' = None) -> list[torch.npu.Event]: pass",
        "def f(s: torch.Stream, e: 'x' = None) -> list[torch.Event]: pass",
    ),
    ("x: torch.cuda.FloatTensor = y", "x: torch.npu.FloatTensor = y", SAME),
    (
        "m = torch.cuda.memory_stats()",
        "m = torch.npu.memory_stats()",
        "m = device_module.memory_stats()",
    ),
    (
        "print(torch.cuda.memory_summary())",
        "print(torch.npu.memory_summary())",
        "print(device_module.memory_summary())",
    ),
    ("XFORMERS_AVAILABLE = torch.cuda.is_available()", SAME, SAME),
    ("torch.cuda.nvtx.range_push('a')", SAME, SAME),
    ("torch.cuda.get_device_capability() >= (8, 0)", SAME, SAME),
    ("def f(torch):\n    torch.cuda.synchronize()", SAME, SAME),
    ("class torch_like:\n    cuda = 1\ntorch_like.cuda", SAME, SAME),
    ("torch.backends.cuda.matmul.allow_tf32 = True", SAME, SAME),
    ("torch.backends.cudnn.benchmark = True", SAME, SAME),
    # AMP
    (
        "with torch.cuda.amp.autocast(): pass",
        'with torch.amp.autocast("npu"): pass',
        'with torch.amp.autocast("npu" if hasattr(torch, "npu") else "cuda"): pass',
    ),
    (
        "with torch.cuda.amp.autocast(True): pass",
        'with torch.amp.autocast("npu", enabled=True): pass',
        'with torch.amp.autocast("npu" if hasattr(torch, "npu") else "cuda", enabled=True): pass',
    ),
    (
        "with torch.cuda.amp.autocast(enabled=a, dtype=b): pass",
        'with torch.amp.autocast("npu", enabled=a, dtype=b): pass',
        'with torch.amp.autocast("npu" if hasattr(torch, "npu") else "cuda", enabled=a, dtype=b): pass',
    ),
    (
        "with autocast(): pass",
        'with autocast("npu"): pass',
        'with autocast("npu" if hasattr(torch, "npu") else "cuda"): pass',
    ),
    (
        "a = partial(torch.cuda.amp.autocast, dtype=d)",
        "a = partial(torch.npu.amp.autocast, dtype=d)",
        "a = partial(device_module.amp.autocast, dtype=d)",
    ),
    (
        'has = hasattr(torch.cuda.amp, "autocast")',
        'has = hasattr(torch.npu.amp, "autocast")',
        'has = hasattr(device_module.amp, "autocast")',
    ),
    (
        "with amp.autocast(): pass",
        'with torch.amp.autocast("npu"): pass',
        'with torch.amp.autocast("npu" if hasattr(torch, "npu") else "cuda"): pass',
    ),
    (
        "s = GradScaler(enabled=e)",
        's = GradScaler("npu", enabled=e)',
        's = GradScaler("npu" if hasattr(torch, "npu") else "cuda", enabled=e)',
    ),
    (
        "s = torch.cuda.amp.GradScaler(2.0**10)",
        's = torch.amp.GradScaler("npu", 2.0**10)',
        's = torch.amp.GradScaler("npu" if hasattr(torch, "npu") else "cuda", 2.0**10)',
    ),
    (
        "@torch.cuda.amp.custom_fwd\ndef f(): pass",
        '@torch.amp.custom_fwd(device_type="npu")\ndef f(): pass',
        '@torch.amp.custom_fwd(device_type="npu" if hasattr(torch, "npu") else "cuda")\ndef f(): pass',
    ),
    (
        "@autocast()\ndef f(): pass",
        '@autocast("npu")\ndef f(): pass',
        '@autocast("npu" if hasattr(torch, "npu") else "cuda")\ndef f(): pass',
    ),
    (
        "s = torch.amp.GradScaler(enabled=e)",
        's = torch.amp.GradScaler("npu", enabled=e)',
        's = torch.amp.GradScaler("npu" if hasattr(torch, "npu") else "cuda", enabled=e)',
    ),
    ('s = torch.amp.GradScaler("cpu")', SAME, SAME),
    ('s = torch.amp.GradScaler(device="cpu")', SAME, SAME),
    (
        "a = torch.cuda.is_available() and torch.backends.cudnn.is_available()",
        "a = torch.npu.is_available() and torch.backends.cudnn.is_available()",
        "a = torch.accelerator.is_available() and torch.backends.cudnn.is_available()",
    ),
    ("register(torch.cuda.amp.GradScaler)", SAME, SAME),  # which makes one without a device
    ("from u import TORCH_NPU_AVAILABLE\nif 'cuda' in device: x = x.cuda()", SAME, SAME),
    (
        "a = torch.is_autocast_enabled()",
        'a = torch.is_autocast_enabled("npu")',
        'a = torch.is_autocast_enabled("npu" if hasattr(torch, "npu") else "cuda")',
    ),
    (
        "a = torch.get_autocast_gpu_dtype()",
        'a = torch.get_autocast_dtype("npu")',
        'a = torch.get_autocast_dtype("npu" if hasattr(torch, "npu") else "cuda")',
    ),
    (
        "torch.set_autocast_enabled(False)",
        'torch.set_autocast_enabled("npu", False)',
        'torch.set_autocast_enabled("npu" if hasattr(torch, "npu") else "cuda", False)',
    ),
    ('torch.set_autocast_enabled("cpu", False)', SAME, SAME),
    ("from torch import get_autocast_gpu_dtype\na = get_autocast_gpu_dtype()", SAME, SAME),
    ("try: a = torch.get_autocast_dtype(d)\nexcept TypeError: a = torch.get_autocast_gpu_dtype()", SAME, SAME),
    (
        "with torch.autocast('cuda', torch.float16): pass",
        "with torch.autocast('npu', torch.float16): pass",
        "with torch.autocast('npu' if hasattr(torch, 'npu') else 'cuda', torch.float16): pass",
    ),
    (
        'with torch.amp.autocast(device_type="cuda"): pass',
        'with torch.amp.autocast(device_type="npu"): pass',
        'with torch.amp.autocast(device_type="npu" if hasattr(torch, "npu") else "cuda"): pass',
    ),
    # .cuda()
    ("model.cuda()", "model.npu()", "model.to(torch.accelerator.current_accelerator())"),
    ("x = f(a).cuda()", "x = f(a).npu()", "x = f(a).to(torch.accelerator.current_accelerator())"),
    (
        "x = x.cuda(non_blocking=True)",
        "x = x.npu(non_blocking=True)",
        "x = x.to(torch.accelerator.current_accelerator(), non_blocking=True)",
    ),
    ("x = x.cuda(0)", "x = x.npu(0)", "x = x.to(0)"),
    (
        "x = x.cuda(args.gpu, True)",
        "x = x.npu(args.gpu, True)",
        "x = x.to(args.gpu, non_blocking=True)",
    ),
    ("x = x.cuda(device)", "x = x.npu(device)", "x = x.to(device)"),
    ("x = x.cuda(device=self.device)", "x = x.npu(device=self.device)", "x = x.to(device=self.device)"),
    (
        "x = x.cuda(torch.cuda.current_device())",
        "x = x.npu(torch.npu.current_device())",
        "x = x.to(torch.accelerator.current_device_index())",
    ),
    ("x = x.cuda(None)", "x = x.npu(None)", "x = x.to(torch.accelerator.current_accelerator())"),
    ("x = a.cuda().b.cuda()", "x = a.npu().b.npu()", "x = a.to(DEVICE).b.to(DEVICE)"),
    ("x = x.cuda(*a, **k)", "x = x.npu(*a, **k)", SAME),
    ("class A(nn.Module):\n    def cuda(self):\n        return super().cuda()", SAME, SAME),
    ("x = x.to(0)", SAME, SAME),
    (
        "x = [t.cuda() for t in xs]",
        "x = [t.npu() for t in xs]",
        "x = [t.to(torch.accelerator.current_accelerator()) for t in xs]",
    ),
    ("x.is_cuda and f()", "x.is_npu and f()", 'x.device.type in ("cuda", "npu") and f()'),
    ("assert x.is_cuda", "assert x.is_npu", 'assert x.device.type in ("cuda", "npu")'),
    ("y = not x.is_cuda", "y = not x.is_npu", 'y = x.device.type not in ("cuda", "npu")'),
    ("class Ema:\n    def cuda(self): pass\nema = Ema()\nema.cuda()", SAME, SAME),
    ("class R:\n    def cuda(self): pass\nif a:\n    r = R()\nelse:\n    r = R.of(x)\nf(r.cuda())", SAME, SAME),
    ("class R:\n    def cuda(self): pass\n    def to(self, device, dtype): pass\nR().cuda()", SAME, SAME),
    (
        "class M(torch.Tensor):\n    def cuda(self): pass\nM(x).cuda()",
        "class M(torch.Tensor):\n    def cuda(self): pass\nM(x).npu()",
        "class M(torch.Tensor):\n    def cuda(self): pass\nM(x).to(torch.accelerator.current_accelerator())",
    ),
    ('devices.append("cuda")', 'devices.append("npu")', 'devices.append("npu" if hasattr(torch, "npu") else "cuda")'),
    ("y = hashed(x) if WITH_CUDA_HASH_MAP and x.is_cuda else plain(x)", SAME, SAME),
    ("class TritonOps:\n    def is_available(self):\n        return torch.cuda.is_available()", SAME, SAME),
    ('@register(device=["cuda", "npu"])\nclass A:\n    pass', SAME, SAME),
    ('import cupy as cp\nx = cp.zeros(3) if device == "cuda" else torch.zeros(3)', SAME, SAME),
    ('os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "backend:cudaMallocAsync"', SAME, SAME),
    (
        "d = torch.device(f'cuda{at}' if use_cuda else 'cpu')",
        "d = torch.device(f'npu{at}' if use_cuda else 'cpu')",
        "d = torch.device(f'{torch.accelerator.current_accelerator().type}{at}' if use_cuda else 'cpu')",
    ),
    ("nn.Module.cuda(model)", "nn.Module.npu(model)", SAME),
    (
        "t = (torch.FloatTensor, torch.cuda.FloatTensor)",
        "t = (torch.FloatTensor, torch.npu.FloatTensor)",
        "t = (torch.FloatTensor, device_module.FloatTensor)",
    ),
    # devices as strings
    ('device = "cuda"', 'device = "npu"', 'device = "npu" if hasattr(torch, "npu") else "cuda"'),
    (
        "d = torch.device('cuda')",
        "d = torch.device('npu')",
        "d = torch.device(torch.accelerator.current_accelerator() or 'cpu')",
    ),
    (
        "d = torch.device('cuda', 1)",
        "d = torch.device('npu', 1)",
        "d = torch.device('npu' if hasattr(torch, 'npu') else 'cuda', 1)",
    ),
    (
        """d = torch.device(f"cuda:{os.environ['R']}")""",
        """d = torch.device(f"npu:{os.environ['R']}")""",
        'd = torch.device(f"npu:{os.environ[\'R\']}" if hasattr(torch, "npu") else f"cuda:{os.environ[\'R\']}")',
    ),
    (
        "d = torch.device(['cpu', 'cuda'][gpu])",
        "d = torch.device(['cpu', 'npu'][gpu])",
        "d = torch.device(['cpu', 'npu' if hasattr(torch, 'npu') else 'cuda'][gpu])",
    ),
    (
        "d = torch.device(type='cuda', index=1)",
        "d = torch.device(type='npu', index=1)",
        "d = torch.device(type='npu' if hasattr(torch, 'npu') else 'cuda', index=1)",
    ),
    (
        'd = torch.device("cuda:0")',
        'd = torch.device("npu:0")',
        'd = torch.device("npu:0" if hasattr(torch, "npu") else "cuda:0")',
    ),
    (
        "d = th.device(f'cuda:{i}')",
        "d = th.device(f'npu:{i}')",
        "d = th.device(f'npu:{i}' if hasattr(torch, 'npu') else f'cuda:{i}')",
    ),
    (
        'd = torch.device("cuda:{}".format(i))',
        'd = torch.device("npu:{}".format(i))',
        'd = torch.device("npu:{}".format(i) if hasattr(torch, "npu") else "cuda:{}".format(i))',
    ),
    (
        'd = torch.device("cuda:{}".format((i)))',
        'd = torch.device("npu:{}".format((i)))',
        'd = torch.device("npu:{}".format((i)) if hasattr(torch, "npu") else "cuda:{}".format((i)))',
    ),
    (
        'd = torch.device("{}:{}".format("cuda", i))',
        'd = torch.device("{}:{}".format("npu", i))',
        'd = torch.device("npu:{}".format(i) if hasattr(torch, "npu") else "cuda:{}".format(i))',
    ),
    (
        'd = torch.device(":".join(["cuda", i]))',
        'd = torch.device(":".join(["npu", i]))',
        'd = torch.device(":".join(["npu" if hasattr(torch, "npu") else "cuda", i]))',
    ),
    (
        'K = {"gpu": "cuda", "host": "cpu"}\nx.to(K[kind])',
        'K = {"gpu": "npu", "host": "cpu"}\nx.to(K[kind])',
        'K = {"gpu": "npu" if hasattr(torch, "npu") else "cuda", "host": "cpu"}\nx.to(K[kind])',
    ),
    ('K = {"gpu": "cuda", "host": "cpu"}\nprint(K[kind])', SAME, SAME),
    (
        "d = 'cuda:0' if torch.cuda.is_available() else 'cpu'\nx.to(d)",
        "d = 'npu:0' if torch.npu.is_available() else 'cpu'\nx.to(d)",
        "d = f'{torch.accelerator.current_accelerator().type}:0' if torch.accelerator.is_available() else 'cpu'\nx.to(d)",
    ),
    (
        'm = load(device_map="cuda")',
        'm = load(device_map="npu")',
        'm = load(device_map="npu" if hasattr(torch, "npu") else "cuda")',
    ),
    (
        'm = load(device_map={"": "cuda:0"})',
        'm = load(device_map={"": "npu:0"})',
        'm = load(device_map={"": "npu:0" if hasattr(torch, "npu") else "cuda:0"})',
    ),
    (
        'def f(device: Literal["cpu", "cuda"]): pass',
        'def f(device: Literal["cpu", "npu"]): pass',
        'def f(device: Literal["cpu", "cuda", "npu"]): pass',
    ),
    (
        'torch.cuda.set_device("cuda:0")',
        'torch.npu.set_device("npu:0")',
        'torch.accelerator.set_device_index("npu:0" if hasattr(torch, "npu") else "cuda:0")',
    ),
    (
        'x.to("cuda", non_blocking=True)',
        'x.to("npu", non_blocking=True)',
        "x.to(torch.accelerator.current_accelerator(), non_blocking=True)",
    ),
    (
        'x = torch.zeros(2, device="cuda")',
        'x = torch.zeros(2, device="npu")',
        "x = torch.zeros(2, device=torch.accelerator.current_accelerator())",
    ),
    (
        'g = torch.Generator("cuda")',
        'g = torch.Generator("npu")',
        'g = torch.Generator("npu" if hasattr(torch, "npu") else "cuda")',
    ),
    (
        'torch.load(f, map_location="cuda")',
        'torch.load(f, map_location="npu")',
        'torch.load(f, map_location="npu" if hasattr(torch, "npu") else "cuda")',
    ),
    (
        "torch.load(f, map_location=lambda s, _: s.cuda(0))",
        "torch.load(f, map_location=lambda s, _: s.npu(0))",
        "torch.load(f, map_location=lambda s, _: s.to(device=0))",
    ),
    (
        "apply(batch, lambda t: t.cuda())",
        "apply(batch, lambda t: t.npu())",
        "apply(batch, lambda t: t.to(torch.accelerator.current_accelerator()))",
    ),
    (
        "def move(x, device=None):\n    if device is not None:\n        return x.cuda(device)",
        "def move(x, device=None):\n    if device is not None:\n        return x.npu(device)",
        "def move(x, device=None):\n    if device is not None:\n        return x.to(device)",
    ),
    (
        "def move(x, device=None, gpu=None):\n    x.cuda(device)\n    return x.cuda(gpu)",
        "def move(x, device=None, gpu=None):\n    x.npu(device)\n    return x.npu(gpu)",
        "def move(x, device=None, gpu=None):\n    x.to(DEVICE if device is None else device)\n    return x.to(DEVICE if gpu is None else gpu)",
    ),
    (
        "torch.load(f, lambda s, _: s.cuda())",
        "torch.load(f, lambda s, _: s.npu())",
        "torch.load(f, lambda s, _: s.to(device=torch.accelerator.current_accelerator()))",
    ),
    ('torch.load("cuda")', SAME, SAME),
    ('torch.load("cuda:model.pt")', SAME, SAME),
    (
        'where = "cuda"\nx.to(where)',
        'where = "npu"\nx.to(where)',
        'where = "npu" if hasattr(torch, "npu") else "cuda"\nx.to(where)',
    ),
    ('where = "cuda"\nprint(where)', SAME, SAME),
    (
        'def f(device="cuda"): pass',
        'def f(device="npu"): pass',
        'def f(device="npu" if hasattr(torch, "npu") else "cuda"): pass',
    ),
    (
        'def f(d="cuda"):\n    return x.to(d)',
        'def f(d="npu"):\n    return x.to(d)',
        'def f(d="npu" if hasattr(torch, "npu") else "cuda"):\n    return x.to(d)',
    ),
    ('def f(kind="cuda"): return kind', SAME, SAME),
    (
        'def g(a, device): pass\ng(1, "cuda")',
        'def g(a, device): pass\ng(1, "npu")',
        'def g(a, device): pass\ng(1, "npu" if hasattr(torch, "npu") else "cuda")',
    ),
    (
        'p.add_argument("--device", default="cuda", help="cuda or cpu")',
        'p.add_argument("--device", default="npu", help="cuda or cpu")',
        'p.add_argument("--device", default="npu" if hasattr(torch, "npu") else "cuda", help="cuda or cpu")',
    ),
    (
        'p.add_argument("--device", choices=["cpu", "cuda"])',
        'p.add_argument("--device", choices=["cpu", "npu"])',
        'p.add_argument("--device", choices=["cpu", "cuda", "npu"])',
    ),
    ('p.add_argument("--name", default="cuda")', SAME, SAME),
    (
        'cfg = {"device": "cuda", "name": "cuda"}',
        'cfg = {"device": "npu", "name": "cuda"}',
        'cfg = {"device": "npu" if hasattr(torch, "npu") else "cuda", "name": "cuda"}',
    ),
    ('cfg["device"] = "cuda"', 'cfg["device"] = "npu"', 'cfg["device"] = "npu" if hasattr(torch, "npu") else "cuda"'),
    (
        'd = cfg.get("device", "cuda")',
        'd = cfg.get("device", "npu")',
        'd = cfg.get("device", "npu" if hasattr(torch, "npu") else "cuda")',
    ),
    ('states["cuda"] = 1', SAME, SAME),
    ('s = {"cuda": 1}', SAME, SAME),
    ('print("cuda")', SAME, SAME),
    ('raise ValueError("cuda:0 is needed")', SAME, SAME),
    ('image = "nvidia/cuda:11.8"', SAME, SAME),
    ('url = "https://download.pytorch.org/whl/cuda"', SAME, SAME),
    ('path = "cuda/kernels.py"', SAME, SAME),
    # comparisons
    ("f = device.type=='cuda'", "f = device.type=='npu'", "f = device.type in ('cuda', 'npu')"),
    ('f = device.type == "cuda"', 'f = device.type == "npu"', 'f = device.type in ("cuda", "npu")'),
    ('f = device.type != "cuda"', 'f = device.type != "npu"', 'f = device.type not in ("cuda", "npu")'),
    ("f = 'cuda' in device", "f = 'npu' in device", "f = 'cuda' in device or 'npu' in device"),
    ("f = device.startswith('cuda')", "f = device.startswith('npu')", "f = device.startswith(('cuda', 'npu'))"),
    (
        'f = x.device.type in ("cpu", "cuda")',
        'f = x.device.type in ("cpu", "npu")',
        'f = x.device.type in ("cpu", "cuda", "npu")',
    ),
    (
        'f = x.device.type == ("cuda" if torch.cuda.is_available() else "cpu")',
        'f = x.device.type == ("npu" if torch.npu.is_available() else "cpu")',
        'f = x.device.type == (torch.accelerator.current_accelerator().type if torch.accelerator.is_available() else "cpu")',
    ),
    (
        'match device.type:\n    case "cuda": a()\n    case "cpu": b()',
        'match device.type:\n    case "npu": a()\n    case "cpu": b()',
        SAME,
    ),
    ('match kind:\n    case "cuda": a()', SAME, SAME),
    ('f = "CUDA out of memory" in str(e)', 'f = "out of memory" in str(e)', 'f = "out of memory" in str(e)'),
    ('print("CUDA out of memory")', SAME, SAME),
    ("if HAS_XFORMERS and q.device.type == 'cuda': pass", SAME, SAME),
    ('f = impl == "cuda"', SAME, SAME),
    ('if device == "cuda": a()\nelif device == "xpu": b()', SAME, SAME),
    ('if device == "cuda": a()\nelif device == "npu": b()', SAME, SAME),
    ('f = "npu" if has_npu() else "cuda"\nx.to(f)', SAME, SAME),
    (
        'if device.type == th.device("cuda").type: pass',
        'if device.type == th.device("npu").type: pass',
        'if device.type in ("cuda", "npu"): pass',
    ),
    ('i = str(device).replace("cuda:", "")', 'i = str(device).replace("npu:", "")', SAME),
    ('f = device.startswith("cuda:")', 'f = device.startswith("npu:")', 'f = device.startswith(("cuda:", "npu:"))'),
    ('def f(backend: Literal["ncclep"]): pass', SAME, SAME),
    ('f = str(x.device) == "cuda:0"', 'f = str(x.device) == "npu:0"', 'f = str(x.device) == f"{DEVICE_TYPE}:0"'),
    (
        'if torch.cuda.is_available(): a()\nelif d == "xla": b()',
        'if torch.npu.is_available(): a()\nelif d == "xla": b()',
        'if torch.accelerator.is_available(): a()\nelif d == "xla": b()',
    ),
    # conditions that decide about CUDA alone
    ("if torch.cuda.is_available(): check_nvlink(fabric)", SAME, SAME),
    ("if torch.cuda.is_available():\n    c = torch.cuda.get_device_capability()", SAME, SAME),
    ("def _is_nvidia(): return torch.cuda.is_available() and torch.version.hip is None", SAME, SAME),
    ('def f(device): return device.type == "cuda" and torch.cuda.get_device_properties(device).major >= 9', SAME, SAME),
    ('c = torch.cuda.is_available() and d != "cpu"\np = ["CUDAExecutionProvider"] if c else []', SAME, SAME),
    ('if device_type != "cuda": print("no FP8")\nelse:\n    from project.fp8 import convert', SAME, SAME),
    ("io.bind_input(device_id=x.device.index if x.device.type == 'cuda' else 0)", SAME, SAME),
    ("def f(d, load_8bit):\n    if not load_8bit: return False\n    if d != 'cuda': return False", SAME, SAME),
    ("x = x.cuda(get_current_device())", "x = x.npu(get_current_device())", "x = x.to(get_current_device())"),
    ("use_cuda_kernel = g[0].device.type == 'cuda'", SAME, SAME),
    (
        "def f():\n    if not torch.cuda.is_available(): skip()\n    x = y.cuda()\n    nccl_allocator.init()",
        SAME,
        SAME,
    ),
    ('print("CUDA available:", torch.cuda.is_available())', SAME, SAME),
    ('print(f"CUDA: {torch.cuda.is_available()}")', SAME, SAME),
    (
        "c = a.get('use_cuda', torch.cuda.is_available())",
        "c = a.get('use_cuda', torch.npu.is_available())",
        "c = a.get('use_cuda', torch.accelerator.is_available())",
    ),
    ("f(cuda=d.type == 'cuda' and not rocm_is_available())", SAME, SAME),
    ("if d.type == 'cuda' and torch.backends.cudnn.benchmark: f()", SAME, SAME),
    ("if torch.cuda.is_available(): warn(f'NVML failed: {e}')", SAME, SAME),
    ("import isaacgymenvs as i\ni.make(sim_device='cuda:0' if torch.cuda.is_available() else 'cpu')", SAME, SAME),
    (
        "if torch.cuda.is_available():\n    torch.backends.cudnn.benchmark = True",
        "if torch.npu.is_available():\n    torch.backends.cudnn.benchmark = True",
        SAME,
    ),
    (
        "torch.manual_seed(s)\nif d.type == 'cuda' and a:\n    torch.cuda.manual_seed(s)\n    torch.backends.cuda.matmul.allow_tf32 = a",
        "torch.manual_seed(s)\nif d.type == 'npu' and a:\n    torch.npu.manual_seed(s)\n    torch.backends.cuda.matmul.allow_tf32 = a",
        SAME,
    ),
    (
        "if torch.cuda.is_available():\n    torch.backends.cudnn.benchmark = True\nelse:\n    warn()",
        "if torch.npu.is_available():\n    torch.backends.cudnn.benchmark = True\nelse:\n    warn()",
        "if torch.accelerator.is_available():\n    torch.backends.cudnn.benchmark = True\nelse:\n    warn()",
    ),
    (
        'devices = [f"cuda:{k}" for k in ids]',
        'devices = [f"npu:{k}" for k in ids]',
        'devices = [f"{DEVICE_TYPE}:{k}" for k in ids]',
    ),
    (
        "if torch.cuda.is_available():\n    try:\n        from .. import ops_cuda\n    except:\n        ops_cuda = 0",
        SAME,
        SAME,
    ),
    ("if torch.cuda.is_available():\n    sources += ['src/ops_cuda.c']\n    macros += [('WITH_CUDA', 0)]", SAME, SAME),
    ('import lightning as L\nt = L.Trainer(accelerator="gpu" if torch.cuda.is_available() else "cpu")', SAME, SAME),
    ("import ray\nA.options(num_gpus=0.5 if torch.cuda.is_available() else 0)", SAME, SAME),
    ("import lightning as L\nt = L.Trainer(gpus=1 if torch.cuda.is_available() else 0)", SAME, SAME),
    ("def f():\n    import tensorrt\n    d = torch.device('cuda:0')", SAME, SAME),
    ("import cupy\nx = y.cuda()", SAME, SAME),
    (
        'from safetensors.torch import load_file\nw = load_file(p, "cuda")',
        'from safetensors.torch import load_file\nw = load_file(p, "npu")',
        'from safetensors.torch import load_file\nw = load_file(p, "npu" if hasattr(torch, "npu") else "cuda")',
    ),
    ("try:\n    import apex\n    FUSED = True\nexcept ImportError: pass\nif FUSED and x.is_cuda: pass", SAME, SAME),
    ('f = "cuda" in str(m.device)', 'f = "npu" in str(m.device)', 'f = str(m.device).startswith(("cuda", "npu"))'),
    ("class CudaAccelerator:\n    def is_available(self): return torch.cuda.is_available()", SAME, SAME),
    (
        "def f():\n    if not torch.cuda.is_available(): return\n    major, _ = torch.cuda.get_device_capability()",
        SAME,
        SAME,
    ),
    # communication
    (
        'dist.init_process_group("nccl")',
        'dist.init_process_group("hccl")',
        'dist.init_process_group("hccl" if hasattr(torch, "npu") else "nccl")',
    ),
    (
        'dist.init_process_group(backend="nccl", rank=r)',
        'dist.init_process_group(backend="hccl", rank=r)',
        'dist.init_process_group(backend="hccl" if hasattr(torch, "npu") else "nccl", rank=r)',
    ),
    ("backend = 'nccl'", "backend = 'hccl'", "backend = 'hccl' if hasattr(torch, 'npu') else 'nccl'"),
    (
        "args.dist_backend = 'nccl'",
        "args.dist_backend = 'hccl'",
        "args.dist_backend = 'hccl' if hasattr(torch, 'npu') else 'nccl'",
    ),
    (
        'p.add_argument("--dist-backend", default="nccl")',
        'p.add_argument("--dist-backend", default="hccl")',
        'p.add_argument("--dist-backend", default="hccl" if hasattr(torch, "npu") else "nccl")',
    ),
    (
        'b = "nccl"\ndist.init_process_group(b)',
        'b = "hccl"\ndist.init_process_group(b)',
        'b = "hccl" if hasattr(torch, "npu") else "nccl"\ndist.init_process_group(b)',
    ),
    (
        'f = dist.get_backend() == "nccl"',
        'f = dist.get_backend() == "hccl"',
        'f = dist.get_backend() in ("nccl", "hccl")',
    ),
    (
        "f = dist.get_backend() == dist.Backend.NCCL",
        "f = dist.get_backend() == dist.Backend.HCCL",
        'f = dist.get_backend() in (dist.Backend.NCCL, "hccl")',
    ),
    (
        "dist.init_process_group(dist.Backend.NCCL)",
        'dist.init_process_group("hccl")',
        'dist.init_process_group("hccl" if hasattr(torch, "npu") else "nccl")',
    ),
    (
        'dist.init_process_group("nccl", device_id=d)',
        'dist.init_process_group("hccl", device_id=d)',
        'dist.init_process_group("hccl" if hasattr(torch, "npu") else "nccl", device_id=d)',
    ),
    ('if backend == "nccl": o = dist.ProcessGroupNCCL.Options()', SAME, SAME),
    (
        'dist.init_process_group(backend="NCCL" if has_gpu else "GLOO")',
        'dist.init_process_group(backend="hccl" if has_gpu else "GLOO")',
        'dist.init_process_group(backend=("hccl" if hasattr(torch, "npu") else "nccl") if has_gpu else "GLOO")',
    ),
    (
        'devices = ["cpu", "cuda:0"]\nassert d in devices\nfor device in devices: model.to(device)',
        'devices = ["cpu", "npu:0"]\nassert d in devices\nfor device in devices: model.to(device)',
        'devices = ["cpu", "npu:0" if hasattr(torch, "npu") else "cuda:0"]\nassert d in devices\nfor device in devices: model.to(device)',
    ),
    (
        "ok = dist.is_nccl_available()",
        'ok = dist.is_backend_available("hccl")',
        'ok = dist.is_backend_available("hccl" if hasattr(torch, "npu") else "nccl")',
    ),
    (
        'def main(device: str = typer.Option("cuda")): pass',
        'def main(device: str = typer.Option("npu")): pass',
        'def main(device: str = typer.Option("npu" if hasattr(torch, "npu") else "cuda")): pass',
    ),
    ('print("nccl")', SAME, SAME),
    # environment
    (
        'n = os.environ["CUDA_VISIBLE_DEVICES"]',
        'n = os.environ["ASCEND_RT_VISIBLE_DEVICES"]',
        'n = os.environ.get("ASCEND_RT_VISIBLE_DEVICES") or os.environ["CUDA_VISIBLE_DEVICES"]',
    ),
    (
        'n = os.getenv("CUDA_VISIBLE_DEVICES", "0")',
        'n = os.getenv("ASCEND_RT_VISIBLE_DEVICES", "0")',
        'n = os.getenv("ASCEND_RT_VISIBLE_DEVICES", os.getenv("CUDA_VISIBLE_DEVICES", "0"))',
    ),
    (
        'os.environ.setdefault("CUDA_LAUNCH_BLOCKING", "1")',
        'os.environ.setdefault("ASCEND_LAUNCH_BLOCKING", "1")',
        SAME,
    ),
    (
        'f = "CUDA_VISIBLE_DEVICES" not in os.environ',
        'f = "ASCEND_RT_VISIBLE_DEVICES" not in os.environ',
        'f = "CUDA_VISIBLE_DEVICES" not in os.environ and "ASCEND_RT_VISIBLE_DEVICES" not in os.environ',
    ),
    ('e = {**os.environ, "CUDA_VISIBLE_DEVICES": g}', 'e = {**os.environ, "ASCEND_RT_VISIBLE_DEVICES": g}', SAME),
    ('os.environ.update({"CUDA_VISIBLE_DEVICES": g})', 'os.environ.update({"ASCEND_RT_VISIBLE_DEVICES": g})', SAME),
    (
        'e = os.environ.copy()\ne["CUDA_VISIBLE_DEVICES"] = g',
        'e = os.environ.copy()\ne["ASCEND_RT_VISIBLE_DEVICES"] = g',
        'e = os.environ.copy()\ne["CUDA_VISIBLE_DEVICES"] = g\ne["ASCEND_RT_VISIBLE_DEVICES"] = g',
    ),
    ('print("set CUDA_VISIBLE_DEVICES")', SAME, SAME),
    (
        'c = ["python", "t.py", "--device", "cuda"]',
        'c = ["python", "t.py", "--device", "npu"]',
        'c = ["python", "t.py", "--device", "npu" if hasattr(torch, "npu") else "cuda"]',
    ),
    (
        'def f(o):\n    os.environ["CUDA_VISIBLE_DEVICES"] = o.ids\n    d = torch.device("cuda" if torch.cuda.is_available() else "cpu")',
        'def f(o):\n    os.environ["ASCEND_RT_VISIBLE_DEVICES"] = o.ids\n    d = torch.device("npu" if torch.npu.is_available() else "cpu")',
        'def f(o):\n    os.environ["CUDA_VISIBLE_DEVICES"] = o.ids\n    os.environ["ASCEND_RT_VISIBLE_DEVICES"] = o.ids\n    d = torch.device(torch.accelerator.current_accelerator(check_available=True) or "cpu")',
    ),
    ('d = {"CUDA_VISIBLE_DEVICES": 1}', SAME, SAME),
    # what ten repositories showed that nobody had read before
    (
        '@pytest.mark.parametrize("n, device", [(1, "cuda"), pytest.param(2, "cuda")])\ndef f(n, device): ...',
        '@pytest.mark.parametrize("n, device", [(1, "npu"), pytest.param(2, "npu")])\ndef f(n, device): ...',
        '@pytest.mark.parametrize("n, device", [(1, DEVICE_TYPE), pytest.param(2, DEVICE_TYPE)])\ndef f(n, device): ...',
    ),
    (
        'class M:\n    def move(self, x, device): ...\n    def f(self): self.move(1, "cuda")',
        'class M:\n    def move(self, x, device): ...\n    def f(self): self.move(1, "npu")',
        'class M:\n    def move(self, x, device): ...\n    def f(self): self.move(1, "npu" if hasattr(torch, "npu") else "cuda")',
    ),
    (
        'if d.type == "cuda": torch.cuda.synchronize()\nelif d.type == "xpu": torch.xpu.synchronize()',
        'if d.type == "npu": torch.npu.synchronize()\nelif d.type == "xpu": torch.xpu.synchronize()',
        'if d.type in ("cuda", "npu"): device_module.synchronize()\nelif d.type == "xpu": torch.xpu.synchronize()',
    ),
    (
        'if kind() == "cuda": torch.cuda.empty_cache()',
        'if kind() == "npu": torch.npu.empty_cache()',
        'if kind() in ("cuda", "npu"): device_module.empty_cache()',
    ),
    (
        "try: from torch.amp import custom_fwd as c\nexcept ImportError: from torch.cuda.amp import custom_fwd as c",
        SAME,
        SAME,
    ),
    ("n = torch.cuda.get_device_properties(0).multi_processor_count", SAME, SAME),
    (
        "g = torch.cuda.CUDAGraph()\nwith torch.cuda.graph(g): f()",
        "g = torch.npu.NPUGraph()\nwith torch.npu.graph(g): f()",
        SAME,
    ),
    (
        "e = cast(torch.cuda.Event, torch.cuda.Event())",
        "e = cast(torch.npu.Event, torch.npu.Event())",
        "e = cast(torch.Event, torch.Event())",
    ),
    (
        "from typing import cast\ne = cast(torch.cuda.Event, x)",
        "from typing import cast\ne = cast(torch.npu.Event, x)",
        "from typing import cast\ne = cast(torch.Event, x)",
    ),
    (
        "assert all(t.is_cuda for t in ts)",
        "assert all(t.is_npu for t in ts)",
        'assert all(t.device.type in ("cuda", "npu") for t in ts)',
    ),
    (
        'if a and ("cuda" in args.device): f()',
        'if a and ("npu" in args.device): f()',
        'if a and ("cuda" in args.device or "npu" in args.device): f()',
    ),
    ('def t():\n    with patch("torch.cuda.is_available"): assert f("cuda:1") == x.to("cuda")', SAME, SAME),
    ('import ctranslate2\ng = ctranslate2.Generator(p, device="cuda")', SAME, SAME),
    (
        "def dtw(x):\n    if x.is_cuda: return dtw_cuda(x)\ndef dtw_cuda(x):\n    from .triton_ops import kernel",
        SAME,
        SAME,
    ),
    ("if torch.cuda.is_available() is False: raise ValueError\nimport cupy", SAME, SAME),
    (
        'def t():\n    assert x.device == torch.device("cuda:0")',
        'def t():\n    assert x.device == torch.device("npu:0")',
        "def t():\n    assert x.device == torch.device(0)",
    ),
    ('@unittest.skipUnless(torch.cuda.is_available(), "needs flash-attn")\ndef t(): ...', SAME, SAME),
    (
        "try: from apex.normalization import FusedLayerNorm\nexcept ImportError: from torch.nn import LayerNorm",
        SAME,
        SAME,
    ),
    # a guard of numba's kernels, what a refusal says, a test that needs a library of CUDA, and code for an older torch
    (
        "from numba import cuda as kernels\nif all(t.is_cuda for t in (a, b)): loss(a, b)",
        SAME,
        SAME,
    ),
    (
        "import flash_attn\nif not x.is_cuda: raise TypeError(f'not a cuda tensor: {x.is_cuda}')",
        SAME,
        SAME,
    ),
    ("if torch.cuda.is_available(): warnings.warn('We recommend ' + '`attn_impl: triton`.')", SAME, SAME),
    ("def test():\n    pytest.importorskip('numba')\n    x.cuda()", SAME, SAME),
    ("if parse(torch.__version__) < parse('2.4.0'): s = torch.cuda.amp.GradScaler()", SAME, SAME),
    (
        "if parse(torch.__version__) >= parse('2.4'): x.cuda()\nelse: y.cuda()",
        "if parse(torch.__version__) >= parse('2.4'): x.npu()\nelse: y.cuda()",
        "if parse(torch.__version__) >= parse('2.4'): x.to(torch.accelerator.current_accelerator())\nelse: y.cuda()",
    ),
    (
        "from numba import cuda as n\ndef f(x): n.external_stream(torch.cuda.current_stream(x.device).cuda_stream)",
        SAME,
        SAME,
    ),
    ('if not x.is_cuda: raise ValueError("Only CUDA tensors are supported")', SAME, SAME),
    ('g = True if "cuda" in str(device) else False\nk = faiss.Kmeans(d, n, gpu=g)', SAME, SAME),
    # one device in another: x.cuda(torch.device(3)) is no number
    (
        "x = x.cuda(device=torch.device(self.card), non_blocking=True)",
        "x = x.npu(device=torch.device(self.card), non_blocking=True)",
        "x = x.to(device=torch.device(self.card), non_blocking=True)",
    ),
    # a value with a default, spelled out
    (
        "n = os.environ['CUDA_VISIBLE_DEVICES'] if 'CUDA_VISIBLE_DEVICES' in os.environ.keys() else 'ALL'",
        "n = os.environ['ASCEND_RT_VISIBLE_DEVICES'] if 'ASCEND_RT_VISIBLE_DEVICES' in os.environ.keys() else 'ALL'",
        "n = (\n    (os.environ.get('ASCEND_RT_VISIBLE_DEVICES') or os.environ['CUDA_VISIBLE_DEVICES']) if ('CUDA_VISIBLE_DEVICES' in os.environ.keys() or 'ASCEND_RT_VISIBLE_DEVICES' in os.environ.keys())\n    else 'ALL'\n)",
    ),
    # a function whose forward is a compiled extension
    (
        "class F(torch.autograd.Function):\n    @staticmethod\n    def forward(ctx, x): return _C.forward(x)\n"
        "if torch.cuda.is_available() and x.is_cuda: y = F.apply(x)",
        SAME,
        SAME,
    ),
    # in float32 as a whole, or not at all
    (
        "k = 'n', 'c'\nt = torch.zeros(1, dtype=torch.float64)\ndist.all_reduce(t)",
        "k = 'n', 'c'\nt = torch.zeros(1, dtype=torch.float32)\ndist.all_reduce(t)",
        "k = 'n', 'c'\nt = torch.zeros(1, dtype=torch.float32 if hasattr(torch, 'npu') else torch.float64)\ndist.all_reduce(t)",
    ),
    ("n = torch.tensor([start_time], dtype=torch.double)\ndist.all_reduce(n)", SAME, SAME),
    ("n = torch.zeros(2, dtype=torch.double)\nfor x in y: n += x\ndist.all_reduce(n)", SAME, SAME),
    ("n = torch.zeros(2, dtype=torch.double) if new else old\ndist.all_reduce(n)", SAME, SAME),
    # what belongs together
    (
        "p.add_argument('--device', default='cuda', choices=['cuda', 'cpu'])",
        "p.add_argument('--device', default='npu', choices=['npu', 'cpu'])",
        "p.add_argument('--device', default='npu' if hasattr(torch, 'npu') else 'cuda', choices=['cuda', 'npu', 'cpu'])",
    ),
    (
        "def f(device: Literal['cuda', 'cpu'] = 'cuda'): pass",
        "def f(device: Literal['npu', 'cpu'] = 'npu'): pass",
        "def f(device: Literal['cuda', 'npu', 'cpu'] = 'npu' if hasattr(torch, 'npu') else 'cuda'): pass",
    ),
    (
        "s = {'cpu': torch.get_rng_state(), 'cuda': torch.cuda.get_rng_state()}\ntorch.cuda.set_rng_state(s['cuda'])",
        "s = {'cpu': torch.get_rng_state(), 'cuda': torch.npu.get_rng_state()}\ntorch.npu.set_rng_state(s['cuda'])",
        "s = {'cpu': torch.get_rng_state(), 'cuda': device_module.get_rng_state()}\ndevice_module.set_rng_state(s['cuda'])",
    ),
    (
        "torch.manual_seed(s)\nif torch.cuda.is_available():\n    torch.cuda.manual_seed_all(s)",
        "torch.manual_seed(s)\nif torch.npu.is_available():\n    torch.npu.manual_seed_all(s)",
        SAME,
    ),
    (
        "torch.manual_seed(s)\ntorch.cuda.manual_seed_all(s + rank)",
        "torch.manual_seed(s)\ntorch.npu.manual_seed_all(s + rank)",
        "torch.manual_seed(s)\ndevice_module.manual_seed_all(s + rank)",
    ),
]
