"""Hold what a walk predicts against what a GPU needs: peak memory and time of a step, for plain transformers jobs.

    npukit run --device sim --compute shapes -m benchmarks plan --predict     # writes plan.json; needs no GPU
    PYTHONPATH=src python -m benchmarks plan                                   # on a machine with a GPU

The same jobs run in both: first on a simulated NPU where nothing is computed, watched by the observer of `npukit plan`,
then for real. Aims: the peak within 5% in 10 of 12 jobs; the time of a step within 25%, after two other jobs have shown
how fast this host issues operators and which share of its peaks the GPU reaches.

Two things differ between torch on an NPU and on CUDA and are undone in the prediction: torch_npu keeps the input of a
frozen linear layer (`linear_as_on_cuda`), and its attention keeps 16 numbers a row and head where CUDA's keeps one. A
third is CUDA's alone: products whose rows are no multiple of 16 bytes, as GPT-2's 50257 words make them, take several
times as long. How many times, one such product is asked for (`odd_width`).
"""

from __future__ import annotations

import gc
import itertools
import json
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import torch
import torch.nn.functional as F

FILE = Path(__file__).with_suffix(".json")
GIB = 2**30
QWEN2 = {
    "0.5B": (24, 896, 4864, 14, 2, 151936, True),
    "1.5B": (28, 1536, 8960, 12, 2, 151936, True),
    "7B": (28, 3584, 18944, 28, 4, 152064, False),
}


@dataclass(frozen=True)
class Job:
    model: str
    method: str
    rows: int
    length: int
    checkpointing: bool = False
    packed: bool = False

    def __str__(self) -> str:
        extra = ", checkpointing" * self.checkpointing + ", packed" * self.packed
        return f"{self.model} {self.method}, {self.rows} x {self.length}{extra}"


CALIBRATION = [Job("0.5B", "lora", 1, 128), Job("7B", "lora", 4, 1024, checkpointing=True)]
JOBS = [
    Job("gpt2", "full", 8, 1024),
    Job("gpt2", "full", 16, 1024, checkpointing=True),
    Job("gpt2", "full", 32, 512),
    Job("0.5B", "full", 4, 1024),
    Job("0.5B", "full", 8, 1024, checkpointing=True),
    Job("0.5B", "lora", 8, 1024),
    Job("0.5B", "full", 1, 4096, packed=True),
    Job("1.5B", "full", 2, 1024),
    Job("1.5B", "full", 4, 1024, checkpointing=True),
    Job("1.5B", "lora", 4, 2048, checkpointing=True),
    Job("1.5B", "lora", 1, 8192, packed=True),
    Job("7B", "lora", 1, 2048),
    Job("7B", "lora", 2, 2048, checkpointing=True),
    Job("7B", "lora", 1, 4096, checkpointing=True, packed=True),
]


def build(job: Job, device: str) -> Any:
    """The model with random weights, as a fine-tuning script would make it."""
    from transformers import AutoModelForCausalLM, GPT2Config, Qwen2Config

    from npukit.llm.models.attention import register

    register()
    if job.model == "gpt2":
        config: Any = GPT2Config(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
    else:
        layers, hidden, inner, heads, keys, words, tied = QWEN2[job.model]
        config = Qwen2Config(
            vocab_size=words,
            hidden_size=hidden,
            intermediate_size=inner,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            num_key_value_heads=keys,
            tie_word_embeddings=tied,
        )
    dtype = torch.bfloat16 if job.method == "lora" else torch.float32
    attention = "npukit_packed" if job.packed else "sdpa"
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation=attention)
    if job.method == "lora":
        from peft import LoraConfig, get_peft_model

        model = get_peft_model(model, LoraConfig(r=8, target_modules="all-linear", task_type="CAUSAL_LM"))
        model.enable_input_require_grads()
    if job.checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return model.train()


def batch_of(job: Job, device: str) -> dict[str, Any]:
    words = 50257 if job.model == "gpt2" else QWEN2[job.model][5]
    ids = torch.randint(words, (job.rows, job.length), device=device)
    batch: dict[str, Any] = {"input_ids": ids, "labels": ids, "use_cache": False}
    if job.packed:
        ends = [job.length * part // 16 for part in (1, 4, 9, 16)]  # rows of different lengths
        lengths = [end - start for start, end in zip([0, *ends], ends, strict=False)]
        positions = torch.cat([torch.arange(length, device=device) for length in lengths])[None]
        borders = torch.tensor([0, *ends], dtype=torch.int32, device=device)
        batch |= {"position_ids": positions, "max_length": max(lengths)}
        batch |= {"cu_seqlens": borders} if device == "cuda" else {"row_ends": tuple(ends)}
    return batch


def train(job: Job, device: str, steps: int, after: Any = None) -> None:
    model = build(job, device)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-5, fused=True)
    batch = batch_of(job, device)
    for _ in range(steps):
        with torch.autocast(device, torch.bfloat16):
            loss = model(**batch).loss
        casts.clear()
        loss.backward()
        del loss
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if after:
            after()


casts: dict[int, torch.Tensor] = {}  # what autocast remembers until its context ends


def linear_as_on_cuda(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """torch's own way to take a linear layer apart, whose backward pass keeps what it needs and no more."""

    def low(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.dtype == torch.bfloat16 or not torch.is_autocast_enabled("npu"):
            return tensor
        if not tensor.is_leaf or not tensor.requires_grad:
            return tensor.to(torch.bfloat16)
        if torch._C._current_autograd_node() is not None:  # computed again: its context is a short one
            return tensor.to(torch.bfloat16)
        if id(tensor) not in casts:
            casts[id(tensor)] = tensor.to(torch.bfloat16)
        return casts[id(tensor)]

    flat, columns = low(x).reshape(-1, x.shape[-1]), low(weight).t()
    result = flat.mm(columns) if bias is None else torch.addmm(low(bias), flat, columns)
    return result.view(*x.shape[:-1], -1)


def predict_all() -> None:
    """Walk through every job on a simulated NPU, one after the other."""
    from npukit.performance.plan.observe import Observer, WalkIsOver
    from npukit.performance.plan.operators import flops_of, kind_of

    class Watch(Observer):
        odd = 0.0  # operations of products with an odd width, in the last step

        def _count(self, func: Any, args: Any, kwargs: Any, result: Any, inputs: Any, outputs: Any) -> None:
            super()._count(func, args, kwargs, result, inputs, outputs)
            if kind_of(func) == "matmul" and any(
                tensor.shape[-1] * tensor.itemsize % 16 for tensor in (*inputs, *outputs)
            ):
                self.odd += flops_of(func, args, kwargs, result)

        def _start_step(self) -> None:
            super()._start_step()
            self.odd = 0.0

    F.linear = linear_as_on_cuda  # type: ignore[assignment]
    predictions: dict[str, Any] = {}
    for job in [*CALIBRATION, *JOBS]:
        start = time.perf_counter()
        gc.collect()
        torch.npu.empty_cache()
        torch.npu.reset_peak_memory_stats()
        observer = Watch(steps=2)
        try:
            with observer:
                train(job, "npu", steps=3)
        except WalkIsOver:
            pass
        seen = observer.walked()
        casts.clear()
        more = 0 if job.checkpointing else _kept_by_attention(job)
        work: dict[tuple[Any, ...], list[float]] = {}
        for item in (*seen.work, *seen.update):
            # Operators of one kind and one bound belong together: the file stays small.
            key = (item.kind, item.flops > 200 * item.bytes)
            total = work.setdefault(key, [0.0, 0.0, 0.0])
            total[0], total[1], total[2] = total[0] + item.flops, total[1] + item.bytes, total[2] + item.calls
        predictions[str(job)] = {
            "peak": seen.peak - more,
            "held": seen.by_role(),
            "odd": observer.odd,
            "work": [{"kind": kind, "flops": f, "bytes": b, "calls": c} for (kind, _), (f, b, c) in work.items()],
        }
        print(f"{job!s:45} {(seen.peak - more) / GIB:6.2f} GiB   {time.perf_counter() - start:.0f} s", flush=True)
        FILE.write_text(json.dumps(predictions, indent=1) + "\n")


def _kept_by_attention(job: Job) -> int:
    layers, heads = (12, 12) if job.model == "gpt2" else (QWEN2[job.model][0], QWEN2[job.model][3])
    return layers * heads * job.rows * job.length * 15 * 4


def odd_width() -> float:
    """How many times as long the three products of a linear layer take with 50257 columns as with 50304."""

    def seconds(columns: int) -> float:
        x, weight, gradient = (
            torch.randn(shape, device="cuda", dtype=torch.bfloat16)
            for shape in ((8192, 768), (columns, 768), (8192, columns))
        )
        for number in range(13):
            if number == 3:
                torch.cuda.synchronize()
                start = time.perf_counter()
            x @ weight.T, gradient @ weight, gradient.T @ x
        torch.cuda.synchronize()
        return time.perf_counter() - start

    return seconds(50257) / seconds(50304)


def measure(job: Job, steps: int = 9) -> tuple[int, float]:
    """Peak bytes, and the median seconds of a step."""
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    moments = []

    def after() -> None:
        torch.cuda.synchronize()
        moments.append(time.perf_counter())

    train(job, "cuda", steps, after)
    times = sorted(end - start for start, end in itertools.pairwise(moments[steps // 3 :]))
    return torch.cuda.max_memory_allocated(), times[len(times) // 2]


def compare() -> None:
    from npukit.facts.planning import planning, speed_of
    from npukit.performance.plan.work import PlannedWork, step_time

    predicted = json.loads(FILE.read_text())
    name = next(gpu for gpu in ("H200", "H100", "A100") if gpu in torch.cuda.get_device_name())
    speed = speed_of(name)
    assert speed is not None

    def seconds(job: Job, launch: float, share: float) -> float:
        work = [PlannedWork(**row) for row in predicted[str(job)]["work"]]
        shares = {part: (share * value, share * value) for part, value in SHARES.items()}
        assumed = replace(planning(), launch_us=(launch, launch), **shares)  # type: ignore[arg-type]
        work.append(PlannedWork("matmul", (odd - 1) * predicted[str(job)]["odd"], 0.0, 0))
        time = step_time(work, speed, assumed=assumed)
        assert time is not None
        return time.step[0]

    odd = odd_width()
    small, large = CALIBRATION
    measured = {small: measure(small, 60), large: measure(large)}
    calls = sum(row["calls"] for row in predicted[str(small)]["work"])
    launch = measured[small][1] / calls * 1e6
    grid = [number / 100 for number in range(20, 140)]
    share = min(grid, key=lambda each: abs(seconds(large, launch, each) / measured[large][1] - 1))
    print(
        f"{torch.cuda.get_device_name()}: {launch:.1f} us to issue an operator, shares of the peaks x {share:.2f}, "
        f"an odd width costs x {odd:.2f}\n"
    )
    print(f"{'job':45} {'peak GiB':>9} {'predicted':>9} {'':>6}  {'ms/step':>8} {'predicted':>9}")
    good = quick = 0
    rows = []
    for job in JOBS:
        peak, step = measure(job)
        expected, time_expected = predicted[str(job)]["peak"], seconds(job, launch, share)
        off, time_off = expected / peak - 1, time_expected / step - 1
        good, quick = good + (abs(off) <= 0.05), quick + (abs(time_off) <= 0.25)
        print(
            f"{job!s:45} {peak / GIB:9.2f} {expected / GIB:9.2f} {off:+6.1%}  {step * 1e3:8.1f} "
            f"{time_expected * 1e3:9.1f} {time_off:+6.1%}",
            flush=True,
        )
        rows.append({**asdict(job), "peak": peak, "expected": expected, "step": step, "step_expected": time_expected})
    print(f"\npeak within 5%: {good} of {len(JOBS)} (aim: 10 of 12); step within 25%: {quick} of {len(JOBS)}")
    print(json.dumps({"launch_us": launch, "share": share, "odd": odd, "jobs": rows}))


SHARES = {"compute": 0.7, "attention": 0.5, "memory": 0.7}  # of the peaks, before calibration


def main(predict: Annotated[bool, "write what is predicted, on a simulated NPU"] = False) -> None:
    predict_all() if predict else compare()
