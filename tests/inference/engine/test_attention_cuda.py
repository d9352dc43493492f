"""The kernels for CUDA against torch's own attention, on a GPU, or interpreted on the CPU, which needs Triton:
`TRITON_INTERPRET=1 pytest tests/inference/engine/test_attention_cuda.py`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import torch

from npukit.inference.engine.attention import rows_anywhere
from npukit.inference.engine.paged import PagedCall, PagedRows
from npukit.llm.models.quantized import to_8_bits

BLOCK = 64
IS_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
INTERPRETER_ERROR = pytest.mark.skipif(IS_INTERPRETED, reason="Triton's interpreter rounds some numbers to fp8 wrongly")


@pytest.fixture(autouse=True)
def default_device() -> Iterator[None]:
    with torch.device("cpu" if IS_INTERPRETED else "cuda"):
        yield


@pytest.mark.skipif(not IS_INTERPRETED and not torch.cuda.is_available(), reason="needs a GPU, or Triton")
@pytest.mark.parametrize(
    ("programs", "window"), [(1, None), (64, None), (64, 20)], ids=["whole", "in parts", "in parts, with a window"]
)
@pytest.mark.parametrize(
    "kind",
    [torch.float16, torch.int8, pytest.param(torch.float8_e4m3fn, marks=INTERPRETER_ERROR)],
    ids=["fp16", "int8", "fp8"],
)
@pytest.mark.parametrize("rotated", [0, 24], ids=["", "latent"])
def test_rows_of_decoding_and_of_prompts(
    programs: int, window: int | None, kind: torch.dtype, rotated: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from npukit.inference.engine import attention_cuda

    monkeypatch.setattr(attention_cuda, "_PROGRAMS", programs)
    monkeypatch.setattr(attention_cuda, "_arrivals", {})
    torch.manual_seed(0)
    runs = [(199, 200), (0, 1), (64, 65), (0, 9), (37, 43)]  # first and last token of each sequence
    rows = torch.tensor([row for row, (start, stop) in enumerate(runs) for _ in range(start, stop)])
    lengths = torch.tensor([place + 1 for start, stop in runs for place in range(start, stop)])
    tables = (torch.randperm(20) + 1).view(5, 4).int()
    slots = tables[rows, (lengths - 1) // BLOCK].long() * BLOCK + (lengths - 1) % BLOCK
    heads, queries = (1, 20) if rotated else (2, 14)
    keys, values = (torch.randn(21, BLOCK, heads, size).half() for size in (48, rotated or 48))
    key_scales = value_scales = None
    if kind is not torch.float16:
        (keys, key_scales), (values, value_scales) = to_8_bits(keys, kind), to_8_bits(values, kind)
        key_scales, value_scales = key_scales.squeeze(-1), value_scales.squeeze(-1)
    query = torch.randn(len(rows), queries, 48 + rotated).half()
    new = [torch.randn(len(rows), heads, size).half() for size in (48, rotated or 48)]
    batch = PagedRows(rows, tables[rows], lengths, None)
    call = PagedCall(query, new[0], new[1], keys, values, slots, 0.15, window, key_scales, value_scales)
    caches = (keys.clone(), values.clone()) if kind.itemsize == 1 else (keys.float(), values.float())
    exact = rows_anywhere(
        call._replace(
            query=query.float(), key=new[0].float(), value=new[1].float(), key_cache=caches[0], value_cache=caches[1]
        ),
        batch,
    )
    for _ in range(2):  # the first call leaves the counters of parts as it found them
        assert (attention_cuda.attend_rows(call, batch).float() - exact).abs().max() < 3e-3
