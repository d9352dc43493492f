"""Loads a language model for inference, and refuses incomplete models, unknown code and too little memory."""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from npukit.errors import NpukitError
from npukit.inference.engine import Engine
from npukit.inference.engine.request import Request, SamplingParams
from npukit.inference.engine.weight_only import keep_quantized
from npukit.inference.pictures import Fetch, Pictures, from_disk, split_media
from npukit.launch.abilities import abilities
from npukit.launch.devices import torch_device
from npukit.llm.chat.chat import Chat, Prompt
from npukit.llm.chat.messages import Message
from npukit.llm.chat.templates import find_template
from npukit.llm.config.options import DataOptions, ModelOptions, Source
from npukit.llm.config.use import EngineOptions, Use
from npukit.llm.images.images import Images
from npukit.llm.models.adapter import apply_adapter
from npukit.llm.models.checkpoint import WeightFiles, open_checkpoint
from npukit.llm.models.folder import find_parts, read_json
from npukit.llm.models.loading import auto_class, from_pretrained, load_images, thinker_of
from npukit.llm.models.next_tokens import NextTokenLayer, find_next_token_layer, load_next_token_layer
from npukit.llm.models.weights import broken_tokenizer
from npukit.report.terminal import say

SHOWN = 3  # names of weights in a message
GIB = 2**30
DRAFT_SHARE = 0.05  # of the device's memory, for the cache of a draft model


@dataclass(frozen=True)
class Loaded:
    """A model on its device, with its tokenizer and chat template."""

    folder: Path
    model: Any
    tokenizer: Any
    chat: Chat
    defaults: SamplingParams  # of the model's generation_config.json
    adapters: tuple[Path, ...]
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)  # variables of the chat template
    images: Images | None = None  # how images are preprocessed, for a vision model

    def request(
        self,
        messages: Sequence[Message],
        sampling: SamplingParams,
        tools: Sequence[Any] | None = None,
        fetch: Fetch = from_disk(Path()),  # noqa: B008 - it keeps nothing
    ) -> tuple[Prompt, Request]:
        """A conversation as text and as a request for the engine; `fetch` reads its images."""
        messages, sources = split_media(messages)
        pictures = Pictures(self.images, sources, fetch) if sources else None
        prompt = self.chat.prompt(
            messages, tools=tools, template_kwargs=self.template_kwargs, media=pictures.written if pictures else None
        )
        media = pictures.read(prompt.ids) if pictures else None
        return prompt, Request(tuple(prompt.ids), sampling, media=media)

    @property
    def end_tokens(self) -> frozenset[int]:
        return self.chat.stop_ids


def load(use: Use, device: torch.device | None = None) -> Loaded:
    """Load a model with its adapters merged, onto `device` or the device of this process.

    >>> load(Use(model={"path": "runs/lora"})).chat.prompt([{"role": "user", "content": "Hi"}]).ids
    """
    device = device or torch_device()
    if abilities(device).own_memory:
        torch.get_device_module(device).set_device(device)  # a rank's card is not always the first
    folder, adapters = find_parts(use.model.path, use.merged)
    weights = open_checkpoint(folder, pickles=use.engine.allow_pickles)
    config = _config(folder, use)
    dtype = choose_dtype(use.model.dtype, weights, device)
    stays_quantized = bool(weights.quantized) and abilities(device).torch_npu and not adapters
    _check_memory(weights, dtype, device, folder, stays_quantized)
    if use.engine.with_speculative_config().speculative_method:
        find_next_token_layer(config, weights)  # or it is refused now, not after all weights are read
    model = _load_weights(weights, config, dtype, use, auto_class(config))
    for adapter in adapters:
        apply_adapter(model, adapter)
    if stays_quantized:
        keep_quantized(model, weights, device)
    model = model.to(device).eval()
    chat, defaults = load_chat(use)
    thinking = {} if use.chat.enable_thinking is None else {"enable_thinking": use.chat.enable_thinking}
    return Loaded(folder, model, chat.tokenizer, chat, defaults, adapters, thinking, load_pictures(use))


def load_chat(use: Use) -> tuple[Chat, SamplingParams]:
    """A model's tokenizer, chat template and default sampling, without its weights."""
    folder, adapters = find_parts(use.model.path, use.merged)
    tokenizer = load_tokenizer(use)
    generation = _generation_config([*reversed(adapters), folder])
    chat = Chat(tokenizer, find_template(use.chat.template, tokenizer), use.chat.system, _end_tokens(generation))
    return chat, _defaults(generation, chat)


def load_pictures(use: Use) -> Images | None:
    """How a model's images are preprocessed, without its weights; None if it takes none."""
    folder, _ = find_parts(use.model.path, use.merged)
    limits = {name: value for name, value in use.chat.model_dump().items() if name.startswith(("image_", "video_"))}
    data = DataOptions(train=(Source(path="requests"),), **limits)
    return load_images(use.model, str(folder), _config(folder, use), data)


def load_body(folder: Path, use: Use, device: torch.device) -> Any:
    """The transformer alone, without a head, on a device; as strict as `load`."""
    from transformers import AutoModel

    if abilities(device).own_memory:
        torch.get_device_module(device).set_device(device)
    weights = open_checkpoint(folder, pickles=use.engine.allow_pickles)
    config, dtype = _config(folder, use), choose_dtype(use.model.dtype, weights, device)
    _check_memory(weights, dtype, device, folder)
    return _load_weights(weights, config, dtype, use, AutoModel).to(device).eval()


def choose_dtype(name: str, weights: WeightFiles, device: torch.device) -> torch.dtype:
    """The dtype. `auto` is the saved one, but 16 bits on an accelerator, and one that the device supports."""
    if name != "auto":
        named = getattr(torch, name, None)
        if not isinstance(named, torch.dtype) or not named.is_floating_point:
            raise NpukitError(f"There is no dtype {name}: choose auto, bfloat16, float16 or float32.")
        return named
    sizes: dict[torch.dtype, int] = {}
    for entry in weights.entries.values():
        if entry.dtype.is_floating_point:
            sizes[entry.dtype] = sizes.get(entry.dtype, 0) + entry.bytes
    saved = max(sizes, key=lambda dtype: sizes[dtype], default=torch.float32)
    if not abilities(device).own_memory:
        return torch.float32 if saved is torch.float16 else saved
    has_bf16 = torch.get_device_module(device).is_bf16_supported()
    if saved is torch.float16 or not has_bf16:
        return torch.float16
    return torch.bfloat16


def _check_memory(
    weights: WeightFiles, dtype: torch.dtype, device: torch.device, folder: Path, stays_quantized: bool = False
) -> None:
    needed = sum(
        entry.bytes // entry.dtype.itemsize * dtype.itemsize if entry.dtype.is_floating_point else entry.bytes
        for entry in weights.entries.values()
    )
    places = [("the host", needed, _host_memory())]
    if abilities(device).own_memory:
        on_device = weights.saved_bytes if stays_quantized else needed
        places.append((str(device), on_device, torch.get_device_module(device).mem_get_info(device)[0]))
    for place, needed, free in places:
        if needed > free:
            raise NpukitError(
                f"{folder} takes {needed / GIB:.1f} GiB in {str(dtype).removeprefix('torch.')}, but {place} has "
                f"{free / GIB:.1f} GiB free: free some memory, or use a smaller model or dtype."
            )


def _host_memory() -> int:
    """The available memory of the host, including the system's caches."""
    lines = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    return int(lines["MemAvailable"].split()[0]) * 1024


def _config(folder: Path, use: Use) -> Any:
    from transformers import AutoConfig

    raw = read_json(folder / "config.json")
    if "auto_map" in raw and not use.model.trust_remote_code:
        from transformers.models.auto.configuration_auto import CONFIG_MAPPING

        if raw.get("model_type") not in CONFIG_MAPPING:
            raise NpukitError(
                f"{folder} comes with Python code of its own: read it, then allow it with --trust-remote-code."
            )
    with _errors_with_folder(folder):
        return thinker_of(AutoConfig.from_pretrained(folder, trust_remote_code=use.model.trust_remote_code))


def _load_weights(weights: WeightFiles, config: Any, dtype: torch.dtype, use: Use, kind: Any) -> Any:
    folder = weights.folder
    with _errors_with_folder(folder), quiet():
        model, loaded = from_pretrained(
            kind,
            str(folder),
            config,
            weights,
            dtype=dtype,
            trust_remote_code=use.model.trust_remote_code,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # they are reported below, all at once
        )
    if wrong := loaded["mismatched_keys"]:
        some = [f"{name} is {tuple(there)} instead of {tuple(here)}" for name, there, here in sorted(wrong)[:SHOWN]]
        raise NpukitError(f"The weights in {folder} do not fit its config.json: {_some(some, len(wrong))}.")
    if missing := sorted(loaded["missing_keys"]):
        raise NpukitError(f"{folder} lacks weights: {_some(missing[:SHOWN], len(missing))}. Download it again.")
    return model


def _some(names: list[str], count: int) -> str:
    return ", ".join(names) + (f" and {count - len(names)} others" if count > len(names) else "")


def load_tokenizer(use: Use) -> Any:
    """The tokenizer: the adapter's own, if it was saved with one."""
    from transformers import AutoTokenizer

    model, adapters = find_parts(use.model.path, use.merged)
    folders = [*reversed(adapters), model]
    folder = next((folder for folder in folders if (folder / "tokenizer_config.json").is_file()), folders[-1])
    if problems := broken_tokenizer(folder):
        raise NpukitError(problems[0])
    with _errors_with_folder(folder), quiet():
        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=use.model.trust_remote_code)
    if len(tokenizer) <= len(tokenizer.all_special_tokens):  # transformers makes such a tokenizer if there is none
        raise NpukitError(f"{folder} has no tokenizer: copy its tokenizer.json there.")
    return tokenizer


def _generation_config(folders: list[Path]) -> dict[str, Any]:
    file = next(
        (folder / "generation_config.json" for folder in folders if (folder / "generation_config.json").is_file()), None
    )
    return read_json(file) if file else {}


def _end_tokens(generation: dict[str, Any]) -> list[int]:
    end = generation.get("eos_token_id")
    return [end] if isinstance(end, int) else list(end or [])


def _defaults(generation: dict[str, Any], chat: Chat) -> SamplingParams:
    """The default sampling: of generation_config.json, otherwise greedy."""
    common: dict[str, Any] = {
        "end_tokens": chat.stop_ids,
        "repetition_penalty": generation.get("repetition_penalty") or 1.0,
    }
    if not generation.get("do_sample"):
        return SamplingParams(temperature=0, **common)
    sampling = {name: generation[name] for name in ("temperature", "top_p", "top_k", "min_p") if generation.get(name)}
    return SamplingParams(**sampling, **common)


@contextlib.contextmanager
def _errors_with_folder(folder: Path) -> Iterator[None]:
    """Turn transformers' errors about a broken model into one sentence."""
    try:
        yield
    except NpukitError:
        raise
    except Exception as error:  # a broken configuration raises all kinds of errors
        first = str(error).strip().split("\n")[0]
        raise NpukitError(f"{folder} cannot be loaded: {first}") from error


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """A context without the progress bars and hints of other libraries; npukit reports what matters."""
    from transformers.utils import logging

    level = logging.get_verbosity()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        logging.set_verbosity(level)
        logging.enable_progress_bar()


def start_engine(loaded: Loaded, options: EngineOptions) -> Engine:
    """An engine for a model; logs if it can only run one sequence at a time.

    >>> start_engine(load(Use(model={"path": "qwen2"})), EngineOptions(max_num_seqs=8))
    """
    options = options.with_speculative_config()
    draft: Engine | NextTokenLayer | None = None
    if options.speculative_model:
        draft = _start_draft(loaded, options)
    elif options.speculative_method:
        weights = open_checkpoint(loaded.folder, pickles=options.allow_pickles)
        with quiet():
            draft = load_next_token_layer(loaded.model, weights)
    with quiet():  # it may test the model on a few tokens
        engine = Engine(loaded.model, options, draft=draft)
    if not engine.is_paged and os.environ.get("LOCAL_RANK", "0") == "0":
        kind = loaded.model.config.model_type
        say(
            f"batched attention does not support {kind} models, so their sequences are computed one after the other "
            "by transformers' own code. This is slower."
        )
    return engine


def _start_draft(loaded: Loaded, options: EngineOptions) -> Engine:
    """The engine of the draft model, with a small cache, on the same device."""
    device = loaded.model.device
    draft = load(Use(model=ModelOptions(path=str(options.speculative_model)), engine=options), device)
    if draft.tokenizer.get_vocab() != loaded.tokenizer.get_vocab():
        raise NpukitError(
            f"{options.speculative_model} has a different tokenizer from {loaded.folder}: use a smaller model of "
            "the same family."
        )
    share = DRAFT_SHARE
    if abilities(device).own_memory:
        free, total = torch.get_device_module(device).mem_get_info(device)
        share += 1 - free / total
    changes = {"speculative_model": None, "quantization": None, "num_blocks": None, "gpu_memory_utilization": share}
    return start_engine(draft, options.model_copy(update=changes))
