"""What many tests need: code run on simulated NPUs, and a tokenizer and a model made in a second, without a hub."""

from __future__ import annotations

import gc
import io
import itertools
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from npukit.launch.imports import quicken_imports
from npukit.simulate import environment

from .forks import Copy, Forks

quicken_imports()
gc.set_threshold(50_000)  # a worker has millions of objects, which live as long as it does
# The same examples in every run; benchmarks/robustness/fuzz_migrate.py looks for new ones.
settings.register_profile("suite", derandomize=True, deadline=None)
settings.load_profile("suite")
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["NPUKIT_LANG"] = "en"  # wherever they run
# A suite that was started in the background would hand on that interrupts are ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)

RunPython = Callable[..., str]
Npukit = Callable[..., subprocess.CompletedProcess[str]]
SENTENCES = (
    "The quick brown fox jumps over the lazy dog. What is the capital of France? The capital of France is Paris.",
    "You are a helpful assistant. Write a short poem about the sea. Translate this sentence into German, please.",
    "One plus one is two, and two plus two is four. Explain why the sky is blue. Because light is scattered by air.",
)
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


# Python looks for garbage while it imports torch, and several times when it ends.
QUICK = """import atexit, gc; atexit.register(gc.freeze)
from npukit.launch.imports import quicken_imports; quicken_imports()
"""


# Folders and files whose tests start processes of their own, and take the longest.
SLOW = (
    "simulated/test_on_npu.py",
    "test_in_browser.py",
    "simulated/",
    "test_install.py",
    "test_guides.py",
    "test_grpo.py",
)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Let each worker of xdist, which divides the tests evenly, begin with its share of the slow files.

    So none is left alone with them at the end: what workers take from each other is quick.
    """
    workers = getattr(config, "workerinput", {}).get("workercount", 1)
    slow = [item for name in SLOW for item in items if _slow_name(item) == name]
    quick = [item for item in items if not _slow_name(item)]
    shared: dict[object, list[pytest.Item]] = {}
    for item in slow:  # of those that are copies of one process, one worker starts that
        shared.setdefault("forks" if "forks" in getattr(item, "fixturenames", ()) else item.path, []).append(item)
    files = list(shared.values())
    left = len(items)
    items.clear()
    for worker in range(workers):
        share = list(itertools.chain(*files[worker::workers]))
        size = left // (workers - worker)
        missing = max(0, size - len(share))
        items += share + quick[:missing]
        del quick[:missing]
        left -= size
    items += quick


def _slow_name(item: pytest.Item) -> str:
    return next((name for name in SLOW if name in item.path.as_posix()), "")


@pytest.fixture(scope="session", autouse=True)
def nothing_is_left_in_the_checkout() -> Iterator[None]:
    """Tests write into tmp_path."""
    root = Path(__file__).parents[1]
    caches = {".hypothesis", ".pytest_cache", ".mypy_cache", ".ruff_cache", ".venv"}
    before = {path.name for path in root.iterdir()}
    yield
    assert {path.name for path in root.iterdir()} - before <= caches


@pytest.fixture(autouse=True)
def environment_variables_are_restored() -> Iterator[None]:
    """Commands set some, in this process too, which would reach the processes of later tests."""
    before = dict(os.environ)
    yield
    for name in os.environ.keys() - before.keys():
        del os.environ[name]
    os.environ.update(before)


@pytest.fixture(scope="session")
def simulated() -> RunPython:
    """`simulated(code, devices=2, ...)` runs code on simulated NPUs and returns what it printed.

    The options are those of `npukit.simulate.environment`; code that fails fails the test, with all it said.
    """

    def run(code: str, *arguments: str, env: dict[str, str] | None = None, **options: Any) -> str:
        command = [sys.executable, "-c", QUICK + textwrap.dedent(code), *arguments]
        variables = {**environment(**options), **(env or {})}
        result = subprocess.run(command, env=variables, capture_output=True, text=True)
        assert result.returncode == 0, f"exit code {result.returncode}\n{result.stdout}\n{result.stderr}"
        return result.stdout.strip()

    return run


@pytest.fixture(scope="session")
def forks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Forks]:
    """`forks.run("npukit", "train", file, "--device", "sim", cwd=folder)`, where starting it is not what is tested."""
    made = Forks(tmp_path_factory.mktemp("forks"))
    yield made
    made.end()


@pytest.fixture
def copies(monkeypatch: pytest.MonkeyPatch) -> None:
    """npukit's processes on the CPU begin as copies of this one, where starting them is not what is tested."""
    from torch.distributed.elastic.multiprocessing.subprocess_handler import subprocess_handler

    monkeypatch.setattr(subprocess, "Popen", Copy)
    monkeypatch.setattr(subprocess_handler, "Popen", Copy)  # torchrun's


@pytest.fixture
def npukit(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Iterator[Npukit]:
    """`npukit("explain", "507015", cwd=folder, text=stdin)` runs the command in this process, which starts sooner."""
    from npukit.cli import main

    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}

    def run(*arguments: object, cwd: Path | None = None, text: str = "") -> subprocess.CompletedProcess[str]:
        capfd.readouterr()
        with monkeypatch.context() as patch, pytest.raises(SystemExit) as ended:
            patch.setattr(sys, "argv", ["npukit", *map(str, arguments)])
            patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
            patch.setenv("COLUMNS", "160")
            patch.chdir(cwd or Path.cwd())
            main()
        captured = capfd.readouterr()
        return subprocess.CompletedProcess(sys.argv, int(ended.value.code or 0), captured.out, captured.err)

    yield run
    for number, handler in handlers.items():
        signal.signal(number, handler)


@pytest.fixture(scope="session")
def tiny_tokenizer() -> Any:
    """A byte-level BPE with ChatML's special tokens and chat template; it encodes any text without loss."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=list(SPECIAL), initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(SENTENCES, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=["<|im_start|>"],
        chat_template=CHATML,
        model_max_length=4096,
    )


@pytest.fixture(scope="session")
def tiny_qwen2(tiny_tokenizer: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a Qwen2 of two layers, 64 wide, with random weights that are always the same, and its tokenizer."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    folder = tmp_path_factory.mktemp("models") / "tiny-qwen2"
    config = Qwen2Config(
        vocab_size=len(tiny_tokenizer),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=4096,
        eos_token_id=tiny_tokenizer.eos_token_id,
        pad_token_id=tiny_tokenizer.pad_token_id,
        bos_token_id=None,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        Qwen2ForCausalLM(config).save_pretrained(folder)
    tiny_tokenizer.save_pretrained(folder)
    return folder
