"""torch's own operator samples (OpInfo) on a simulated NPU, held against the CPU: results, dtypes, shapes, refusals.

    python benchmarks/fuzz_operators.py [--sample 150] [--seed 0] [--only NAME ...] [--samples 4] [--seconds 600]

Every operator is a process of its own, so that a crash is one finding. Each of its samples is computed in every dtype
that the CPU supports: as a function, in place, with out= (right and wrong size), with strided and with empty inputs.
Exit code 1 on a crash, or on a difference that KNOWN does not list with its cause.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import json
import os
import random
import signal
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

KNOWN: dict[str, str] = {
    # What differs, and whose doing it is: torch_npu's own code, torch's own, ours.
    "double": "torch_npu's own: Tensor.double() makes float32 of what is on an NPU",
}
SECONDS = 120
TOLERANCE = {"float16": 2e-2, "bfloat16": 6e-2, "complex32": 2e-2}  # else torch's
UNCOMPARED = (
    *("empty", "new_empty", "rand", "normal", "bernoulli", "multinomial", "dropout", "uniform", "exponential"),
    *("cauchy", "geometric", "log_normal", "rrelu", "svd_lowrank", "pca_lowrank", "resize", "gumbel_softmax"),
    *("fractional_max_pool", "feature_alpha_dropout"),
)


def moved(value: Any, device: str) -> Any:
    """Tensors in whatever holds them, on a device, with their strides."""
    import torch
    from torch.utils._pytree import tree_map

    def move(each: Any) -> Any:
        if not isinstance(each, torch.Tensor) or each.layout != torch.strided:
            return each
        base = torch.empty_strided(each.shape, each.stride(), dtype=each.dtype, device=device)
        return base.copy_(each) if each.numel() and 0 not in each.stride() else each.to(device)

    return tree_map(move, value)


def ways(op: Any, sample: Any) -> Iterator[tuple[str, Callable[[Any], Any], Any]]:
    """How a sample can be computed: a name, a function of the sample, the sample."""
    import torch

    def call(function: Any) -> Callable[[Any], Any]:
        return lambda each: function(each.input, *each.args, **each.kwargs)

    yield "function", call(op.op), sample
    if op.inplace_variant and isinstance(sample.input, torch.Tensor):
        yield "in place", lambda each: op.inplace_variant(each.input.clone(), *each.args, **each.kwargs), sample
    with contextlib.suppress(Exception):
        yield "strided", call(op.op), sample.noncontiguous()
    if isinstance(sample.input, torch.Tensor) and sample.input.dim():
        empty = sample.transform(lambda each: each[:0] if isinstance(each, torch.Tensor) and each.dim() else each)
        yield "empty", call(op.op), empty
    if op.supports_out:
        yield "out=", lambda each: with_out(op, each, same=True), sample
        yield "out= resized", lambda each: with_out(op, each, same=False), sample


def with_out(op: Any, sample: Any, same: bool) -> Any:
    """Into tensors of the right size, full of something else, or of size 0."""
    import torch
    from torch.utils._pytree import tree_map

    result = op.op(sample.input, *sample.args, **sample.kwargs)

    def out(each: torch.Tensor) -> torch.Tensor:
        return torch.full_like(each, 1) if same else torch.empty(0, dtype=each.dtype, device=each.device)

    made = tree_map(lambda each: out(each) if isinstance(each, torch.Tensor) else each, result)
    made = tuple(made) if isinstance(result, tuple | list) else made
    op.op(sample.input, *sample.args, **sample.kwargs, out=made)
    return made


def outcome(function: Callable[[Any], Any], sample: Any) -> tuple[Any, str]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return function(sample), ""
    except Exception as error:
        return None, f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"[:160]


def compare(name: str, expected: Any, got: Any) -> str:
    """How the results differ, or nothing."""
    import torch
    from torch.utils._pytree import tree_flatten

    left, right = tree_flatten(expected)[0], tree_flatten(got)[0]
    if len(left) != len(right):
        return f"{len(right)} results, {len(left)} expected"
    for first, second in zip(left, right, strict=True):
        if not isinstance(first, torch.Tensor):
            if first != second and first == first:
                return f"{second}, {first} expected"
            continue
        if first.shape != second.shape or first.dtype != second.dtype:
            return f"{second.dtype} {tuple(second.shape)}, {first.dtype} {tuple(first.shape)} expected"
        if any(part in name for part in UNCOMPARED) or not first.numel() or first.layout != torch.strided:
            continue
        bound = TOLERANCE.get(str(first.dtype).removeprefix("torch."))
        try:
            torch.testing.assert_close(second.cpu(), first, equal_nan=True, rtol=bound, atol=bound)
        except AssertionError as error:
            return str(error).replace("\n", " ")[:160]
    return ""


def fuzz(op: Any, most: int, file: Path) -> None:
    """Try one operator, in this process; counts and findings go to the file."""
    import torch

    counts: collections.Counter[str] = collections.Counter()
    found: dict[str, str] = {}
    name = op.name + (f".{op.variant_test_name}" if op.variant_test_name else "")
    for dtype in sorted(op.supported_dtypes("cpu"), key=str):
        torch.manual_seed(0)
        try:
            samples = list(op.sample_inputs("cpu", dtype))[:most]
        except Exception:
            continue
        for sample in samples:
            for way, function, given in ways(op, sample):
                file.with_suffix(".now").write_text(f"{way} {dtype}")
                state = torch.get_rng_state()
                expected, refused = outcome(function, moved_sample(given, "cpu"))
                torch.set_rng_state(state)
                got, error = outcome(function, moved_sample(given, "npu"))
                kind = "both refuse" if refused and error else "NPU refuses" if error else "CPU refuses"
                if not refused and not error:
                    error = compare(name, expected, got)
                    kind = "differ" if error else "equal"
                counts[kind] += 1
                if kind in ("differ", "NPU refuses"):
                    found.setdefault(f"{kind}: {way} {str(dtype).removeprefix('torch.')}", error)
    file.write_text(json.dumps({"counts": counts, "found": found}))


def moved_sample(sample: Any, device: str) -> Any:
    return sample.transform(lambda each: moved(each, device))


def in_child(op: Any, most: int, folder: Path) -> tuple[dict[str, int], dict[str, str]]:
    file = folder / "result.json"
    for left in folder.iterdir():
        left.unlink()
    child = os.fork()
    if child == 0:
        quiet = os.open(os.devnull, os.O_WRONLY)
        os.dup2(quiet, 2)
        with contextlib.suppress(Exception):
            fuzz(op, most, file)
            os._exit(0)
        file.write_text(json.dumps({"counts": {"not tried": 1}, "found": {}}))  # a sample that cannot be moved
        os._exit(0)
    deadline = time.monotonic() + SECONDS
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            break
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return {"no end": 1}, {f"no end within {SECONDS} s": file.with_suffix(".now").read_text()}
        time.sleep(0.01)
    if file.exists():
        result = json.loads(file.read_text())
        return result["counts"], result["found"]
    now = file.with_suffix(".now").read_text() if file.with_suffix(".now").exists() else "at its start"
    return {"crash": 1}, {f"crash with status {status}": now}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sample", type=int, help="so many operators, drawn at random; all without it")
    parser.add_argument("--samples", type=int, default=4, help="of OpInfo, for each operator and dtype")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--seconds", type=float, default=1e9, help="begin no further operator after that time")
    arguments = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    from npukit.simulate import activate

    activate()
    import torch
    from torch.testing._internal.common_methods_invocations import op_db

    torch.set_num_threads(1)
    ops = [op for op in op_db if not arguments.only or op.name in arguments.only]
    if arguments.sample:
        ops = random.Random(arguments.seed).sample(ops, min(arguments.sample, len(ops)))
    totals: collections.Counter[str] = collections.Counter()
    new = tried = 0
    deadline = time.monotonic() + arguments.seconds
    with tempfile.TemporaryDirectory() as folder:
        for op in ops:
            if time.monotonic() > deadline:
                break
            tried += 1
            counts, found = in_child(op, arguments.samples, Path(folder))
            totals.update(counts)
            name = op.name + (f".{op.variant_test_name}" if op.variant_test_name else "")
            for what, how in found.items():
                refused = what.startswith("NPU refuses")
                cause = KNOWN.get(name)
                new += not refused and cause is None
                print(f"{name}: {what}: {how}" + (f" [known: {cause}]" if cause else ""), flush=True)
    print(
        f"{tried} of {len(ops)} operators; " + ", ".join(f"{number:,} {kind}" for kind, number in totals.most_common())
    )
    print(f"{new} findings that KNOWN does not list")
    sys.exit(bool(new))


if __name__ == "__main__":
    main()
