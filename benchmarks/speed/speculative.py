"""What speculative decoding saves: passes over the weights and time, by prompt lookup, a draft model and a layer for
multi-token prediction (MTP).

    python -m benchmarks speculative [--guesses 8] [--layers 4] [--width 768] [--tokens 60]

The model has the shape of GPT-2 and computes all of it, but its weights are made so that it says a given answer: a
summary that quotes, a function with a name changed, and an answer that has nothing of its prompt. The draft model has
one layer, and is wrong at one token of `--wrong`. The model answers with their guesses and without, one request and
four at a time, greedy and drawn; the answers must be the same. On a GPU in bf16 and seconds by the clock; else on one
thread of the CPU, in fp32 and CPU seconds.

The layer for MTP belongs to a small GLM-4.5 with random weights, made so that it is right more or less often.
"""

from __future__ import annotations

import inspect
import re
import tempfile
import textwrap
import time
from pathlib import Path
from typing import Annotated, Any

import torch
from tests.inference import mtp
from tests.inference.engine.conftest import prompts
from torch import nn
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel
from transformers.utils import logging

from npukit.inference.engine import Engine, EngineOptions, Request, SamplingParams
from npukit.llm.models.checkpoint import open_checkpoint
from npukit.llm.models.next_tokens import load_next_token_layer

CUDA = torch.cuda.is_available()
WORD = re.compile(r"\w+|\s+|[^\w\s]")
SURE = 0.4  # so sure of its answer that a draw follows it in most places, and not in all
FREE = (
    "Air scatters short waves of light far more than long ones, so that blue reaches us from every direction while "
    "red passes straight through; at dusk the way is longer, and little but red is left for us to see."
)


def texts() -> dict[str, tuple[str, str]]:
    """Prompts, and what a good model would answer."""
    about, function = inspect.getdoc(textwrap.shorten) or "", inspect.getsource(textwrap.indent)
    return {
        "summary": (f"Summarise this:\n{about}\nSummary:", f"It says: {about[:330]}"),
        "edited code": (f"Rename prefix to margin:\n{function}", re.sub(r"\bprefix\b", "margin", function)),
        "free answer": ("Why is the sky blue?", FREE),
    }


def model_that_says(prompt: list[int], answer: list[int], layers: int, width: int) -> Any:
    """GPT-2 whose layers add nothing, and whose positions stand for the word that follows there."""
    config = GPT2Config(
        n_layer=layers,
        n_embd=width,
        n_head=width // 64,
        vocab_size=width,
        n_positions=1024,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=None,
    )
    with torch.device("meta"):
        model = GPT2LMHeadModel(config).to(torch.bfloat16 if CUDA else torch.float32)
    model = model.to_empty(device="cuda" if CUDA else "cpu").eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.zero_()
        for module in model.modules():
            if isinstance(module, nn.LayerNorm):
                module.weight.fill_(1.0)
        model.lm_head.weight.copy_(SURE * torch.eye(width))
        places = torch.arange(len(answer)) + len(prompt) - 1
        model.transformer.wpe.weight[places, torch.tensor(answer)] = 1.0
    return model


def answered(
    model: Any, requests: list[Request], draft: Any = None, **guessing: int
) -> tuple[list[list[int]], int, float, float]:
    """Answers, passes over the weights, the share of guesses that were right, seconds."""
    sizes: dict[str, Any] = {"max_num_seqs": 8, "max_model_len": 1024, "num_blocks": 300, "paged": True}
    small = Engine(draft, EngineOptions(**sizes)) if isinstance(draft, GPT2LMHeadModel) else draft
    engine = Engine(model, EngineOptions(**sizes, **guessing, enable_prefix_caching=False), draft=small)
    engine.warm_up()
    launch, passes = engine._runner.launch, 0

    def counted(step: Any) -> Any:
        nonlocal passes
        passes += 1
        return launch(step)

    engine._runner.launch = counted  # type: ignore[method-assign]
    clock = time.perf_counter if CUDA else time.process_time
    began = clock()
    ids = [answer.ids for answer in engine.generate(requests)]
    seconds, stats = clock() - began, engine.stats()
    return ids, passes, stats.accepted_tokens / max(1, stats.draft_tokens), seconds


def by_layer(loud: float, tokens: int) -> None:
    """Print a line for each number of guesses by the layer of a GLM-4.5 whose embeddings are so loud."""
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    with tempfile.TemporaryDirectory() as temporary:
        folder = mtp.save("glm4_moe", Path(temporary), loud)
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16 if CUDA else torch.float32)
        model = model.to("cuda" if CUDA else "cpu").eval()
        layer = load_next_token_layer(model, open_checkpoint(folder))
    requests = [Request(prompt, SamplingParams(temperature=0, max_tokens=tokens)) for prompt in prompts(8)]
    plain = [answered(model, [request]) for request in requests]
    for guesses in (1, 2, 4):
        made = [answered(model, [request], layer, num_speculative_tokens=guesses) for request in requests]
        before, after = (sum(passes for _, passes, *_ in each) / len(each) for each in (plain, made))
        right = sum(right for _, _, right, _ in made) / len(made)
        equal = [ids for ids, *_ in made] == [ids for ids, *_ in plain]
        result = f"{before:.1f} to {after:.1f} passes, {right:.0%} right, answers equal: {equal}"
        print(f"MTP, embeddings times {loud:g}, {guesses} guessed: {result}", flush=True)


def main(
    guesses: Annotated[int, "tokens that are guessed for a pass"] = 8,
    layers: int = 4,
    width: int = 768,
    tokens: Annotated[int, "of an answer"] = 60,
    wrong: Annotated[int, "the draft model is wrong at one token of so many"] = 6,
) -> None:
    """Print a line for each answer and way."""
    torch.set_num_threads(1)
    print(
        f"{'answer':<13}{'how':<18}{'by':<8}{'tokens':>7}{'passes':>12}{'right':>7}{'seconds':>16}{'faster':>8}  equal"
    )
    for kind, (asked, wanted) in texts().items():
        ids = {word: number for number, word in enumerate(dict.fromkeys(WORD.findall(asked + wanted)))}
        prompt, answer = ([ids[word] for word in WORD.findall(text)] for text in (asked, wanted))
        answer = answer[:tokens]
        almost = [(token + 1) % len(ids) if place % wrong == wrong - 1 else token for place, token in enumerate(answer)]
        model, draft = model_that_says(prompt, answer, layers, width), model_that_says(prompt, almost, 1, width)
        ways: dict[str, dict[str, Any]] = {
            "lookup": {"prompt_lookup": guesses},
            "draft": {"num_speculative_tokens": guesses, "draft": draft},
        }
        for name, temperature, clients in (("greedy, 1 client", 0, 1), ("drawn, 1 client", 1, 1), ("drawn, 4", 1, 4)):
            requests = [
                Request(tuple(prompt), SamplingParams(temperature=temperature, seed=seed, max_tokens=tokens))
                for seed in range(clients)
            ]
            plain, passes, _, seconds = answered(model, requests)
            for way, guessing in ways.items():
                guessed, fewer, right, less = answered(model, requests, **guessing)
                print(
                    f"{kind:<13}{name:<18}{way:<8}{sum(map(len, guessed)):>7}{f'{passes} to {fewer}':>12}{right:>7.0%}"
                    f"{f'{seconds:.2f} to {less:.2f}':>16}{seconds / less:>8.2f}  {guessed == plain}",
                    flush=True,
                )
    for loud in (60, 300):
        by_layer(loud, tokens)
