"""Train a language model as a configuration says."""

from __future__ import annotations

import copy
import os
import sys
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from accelerate.utils import send_to_device
from transformers.utils.logging import disable_progress_bar

from npukit.errors import NpukitError
from npukit.launch.devices import torch_device
from npukit.llm import families
from npukit.llm.chat.chat import writes_alike
from npukit.llm.config.options import HEADS, PREFERENCES, Config
from npukit.llm.data.collate import tokens, tokens_of_texts
from npukit.llm.data.prepare import Prepared, pad_id, prepare
from npukit.llm.data.stream import Stream
from npukit.llm.finetune.card import write_card
from npukit.llm.finetune.convert import INITIAL, keep_initial
from npukit.llm.finetune.during import follow
from npukit.llm.finetune.goal import Goal, joins_rows, make_goal
from npukit.llm.finetune.preference import Pairs, add_reference
from npukit.llm.finetune.save import RUN, claim, save_model, save_run, save_trainer_state
from npukit.llm.models.attention import NAME as PACKED_ATTENTION
from npukit.llm.models.attention import register
from npukit.llm.models.flops import flops_per_token
from npukit.llm.models.forward import return_loss, share_rows, stay_near
from npukit.llm.models.fused import use_compilable_gelu, use_fused_operators
from npukit.llm.models.heads import return_embeddings, return_preference
from npukit.llm.models.loading import load_config, load_model, load_tokenizer, locate, make_room
from npukit.llm.models.loss import Weighting, by_likelihood, by_uncertainty
from npukit.llm.models.quantized import quantize
from npukit.llm.models.tuning import plus_groups, tune
from npukit.quiet import verbosity
from npukit.train import Trainer
from npukit.train.blocks import blocks
from npukit.train.precision import choose_precision
from npukit.train.watch import Summary


def train(config: Config) -> Summary:
    """Train to the end; what came of it is in training.output.

    >>> train(Config(model={"path": "Qwen/Qwen2-0.5B"}, data={"train": ["alpaca.jsonl"]}))
    """
    is_main = os.environ.get("RANK", "0") == "0"
    tells = is_main and verbosity() != "quiet"
    tell: Callable[[str], None] = partial(print, flush=True) if tells else lambda _: None
    if not (is_main and sys.stderr.isatty()):
        disable_progress_bar()
    lock = claim(config.training.output) if is_main else nullcontext()
    with lock:
        return _train(config, tell, is_main)


def _train(config: Config, tell: Callable[[str], None], is_main: bool) -> Summary:
    device = torch_device()
    place = locate(config.model)
    shape = load_config(config.model, place)
    config = _packed_if_possible(config, shape, tell)
    _check_sharing(config, shape)
    tokenizer = load_tokenizer(config.model, place)
    data = config.data.model_copy(update={"packing": False}) if config.task in PREFERENCES else config.data
    prepared = prepare(data, config.task, tokenizer, config.training.seed, tell, config.model.hub)
    if not config.model.new_tokens:
        _check_vocabulary(prepared, tokenizer, shape.get_text_config().vocab_size)
    if is_main:
        for sentence in prepared.problems.sentences():
            tell(sentence)
        if config.training.resume == "never" or not (config.training.output / RUN).exists():
            save_run(config, config.training.output)  # a run that cannot go on leaves that of the one before
    is_plain = config.task == "pt" or (config.task in HEADS and config.data.template is None)
    if not is_plain and not writes_alike(tokenizer, prepared.template_used):
        # Whoever talks to the model later must talk as it was taught.
        tokenizer.chat_template = prepared.template_used.text
    goal = make_goal(config, prepared, pad_id(tokenizer), joins_rows(config, shape))
    gradients = partial(_gradients, goal=goal, config=config) if config.tuning.init == "lora_ga" else None
    model = make_model(config, place, device, tokenizer, gradients)
    if config.task in (*PREFERENCES, *HEADS):
        model.config.pad_token_id = pad_id(tokenizer)
    initial = config.training.output / INITIAL if config.tuning.converts else None
    if is_main and initial:
        keep_initial(model, config.training.output)
    turns = config.tuning.turns is not None
    trainer = Trainer(
        model,
        config.training.model_copy(update={"compile": False} | ({"find_unused_parameters": True} if turns else {})),
        goal.train,
        goal.validation,
        loss=goal.loss,
        weight=goal.weight,
        size=partial(tokens, pad_id=pad_id(tokenizer)) if config.task not in HEADS else tokens_of_texts,
        collate=goal.collate,
        parameter_groups=plus_groups(model, config.tuning, config.training.learning_rate, config.training.weight_decay),
        save_model=partial(save_model, tokenizer=tokenizer, initial=initial),
        save_frozen=not config.tuning.is_adapter,  # an adapter goes without the weights below it
        flops_per_item=flops_per_token(model) if config.task in ("sft", "pt") else None,
        item="tokens",
        must_stay={f"tuning.{name}": value for name, value in config.tuning if name != "dropout"},
        noted=_noted(config),
    )
    if trainer.parallel.sequence:
        share_rows(model, trainer.parallel.sequence)
    follow(trainer, config)
    if isinstance(goal.train, Pairs) and goal.needs_reference:
        _add_references(config, goal, trainer, tell)
    summary = trainer.train()
    if is_main:
        save_run(config, config.training.output)
        save_trainer_state(config.training.output, trainer.total_steps)
        if summary.model_step is not None:
            write_card(config, summary, config.training.output)
    return summary


def _add_references(config: Config, goal: Goal, trainer: Trainer, tell: Callable[[str], None]) -> None:
    """Before the first step: what the model thinks of all rows that are trained on or evaluated."""
    for name, data in (("train", goal.train), ("validation", goal.validation)):
        file = config.training.output / f"reference-{name}.npy"
        if config.training.resume == "never" and trainer.parallel.is_main:
            file.unlink(missing_ok=True)
        trainer.parallel.wait()
        if data is not None:
            size = config.training.eval_batch_size or config.training.batch_size
            add_reference(data, goal.collate, trainer.parallel, size, file, tell)  # type: ignore[arg-type]


def _noted(config: Config) -> dict[str, Any]:
    """What a person is told of when a run resumes with another value."""
    data = config.data
    sources = {"train": data.train, "validation": data.validation}
    names = {name: ", ".join(each.path for each in of) for name, of in sources.items() if isinstance(of, tuple)}
    plain = {name: getattr(data, name) for name in ("template", "system", "cutoff", "max_rows", "packing")}
    return {
        "model.path": config.model.path,
        "tuning.dropout": config.tuning.dropout,
        **{f"data.{name}": value for name, value in {**names, **plain}.items()},
    }


def _gradients(model: Any, goal: Goal, config: Config) -> None:
    """Those of the first rows, which are the same on every rank."""
    size, device = config.training.batch_size, next(model.parameters()).device
    warnings.filterwarnings("ignore", "Full backward hook is firing")  # PEFT's own, to count
    for first in range(0, min(config.tuning.init_rows, len(goal.train)), size):
        rows = [goal.train[number] for number in range(first, min(first + size, len(goal.train)))]
        goal.loss(model, send_to_device(goal.collate(rows), device)).backward()  # type: ignore[no-untyped-call]


def make_model(
    config: Config,
    place: str,
    device: torch.device,
    tokenizer: Any = None,
    gradients: Callable[[Any], None] | None = None,
) -> Any:
    """The model as it is trained: loaded, its loss and attention replaced by faster ones, tuned, compiled by layers."""
    register()
    torch.manual_seed(config.training.seed)  # the same new weights on every rank
    joined = joins_rows(config, load_config(config.model, place)) or config.training.sequence_parallel > 1
    attention = PACKED_ATTENTION if joined else None
    if not joined:
        torch.backends.cuda.enable_cudnn_sdp(False)  # plans anew for every width of padded rows, 0.14 s each
    loaded = load_model(config.model, place, weights_dtype(config, device), attention, _new_layer(config))
    if config.model.new_tokens:
        make_room(loaded, len(tokenizer))
    if gradients:
        loaded.to(device)
    return adapt(loaded, config, device, tokenizer, gradients)


def _new_layer(config: Config) -> int:
    """How many numbers a new layer in place of the output layer gives a text; 0 keeps the output layer."""
    if config.task == "classify":
        return config.head.labels
    return int(config.task == "rm" or (config.task == "rerank" and config.head.yes is None))


def adapt(
    model: Any,
    config: Config,
    device: torch.device,
    tokenizer: Any = None,
    gradients: Callable[[Any], None] | None = None,
) -> Any:
    """A model as transformers makes it, turned into the one that is trained."""
    compiles = config.training.compile
    if compiles is None:
        compiles = device.type == "cuda" and config.training.sequence_parallel == 1
    if config.model.quantize:
        quantize(model, config.model.quantize)
    if device.type == "npu":
        use_fused_operators(model)
    elif compiles:
        use_compilable_gelu(model)
    if config.task == "embed":
        return_embeddings(model)
    elif config.task == "rerank" and config.head.yes is not None:
        return_preference(model, *(_token(tokenizer, word) for word in (config.head.yes, config.head.no)))
    elif not _new_layer(config):
        return_loss(model, config.model.balance_experts, _weighting(config))
    before = _before(model, config, device) if config.tuning.loss == "asft" and not config.tuning.is_adapter else None
    tuned = tune(model, config.tuning, config.model, gradients)
    if config.tuning.loss == "asft" and config.task in ("sft", "pt"):
        around = nullcontext if before is not None else tuned.disable_adapter
        stay_near(model, config.tuning.reference_weight, model if before is None else before, around)
    if compiles:
        for layer in blocks(model):
            layer.compile()
    return tuned


def _before(model: Any, config: Config, device: torch.device) -> Any:
    """A copy of the model as it is before training, in the format that it is computed in."""
    made = copy.deepcopy(model).requires_grad_(False).eval()
    return made.to(device, choose_precision(config.training, device).dtype)


def _weighting(config: Config) -> Weighting | None:
    options = config.tuning
    kinds = {
        "plain": None,
        "dft": by_likelihood,
        "asft": by_likelihood,
        "eaft": partial(by_uncertainty, power=options.loss_power),
    }
    return kinds[options.loss] if config.task in ("sft", "pt") else None


def _token(tokenizer: Any, word: str) -> int:
    found = tokenizer.convert_tokens_to_ids(word)
    if found is None or found == tokenizer.unk_token_id:
        raise NpukitError(f"head.yes, head.no: the tokenizer has no single token {word!r}.")
    return int(found)


def _packed_if_possible(config: Config, shape: Any, tell: Callable[[str], None]) -> Config:
    """Only now is it known of which kind the model is."""
    if config.task in ("rm", *HEADS) or config.preference.sft_mean == "all":  # they need padded rows
        return config.model_copy(update={"data": config.data.model_copy(update={"packing": False})})
    if config.data.packing and not families.of(shape).can_pack:
        tell(f"Packing is off: it is for families with plain attention and no experts, and not for {shape.model_type}.")
        data = config.data.model_copy(update={"packing": False})
        return config.model_copy(update={"data": data})
    return config


def _check_sharing(config: Config, shape: Any) -> None:
    if config.training.sequence_parallel > 1 and not families.of(shape).can_pack:
        raise NpukitError(
            "training.sequence_parallel is for families with plain attention and no experts, "
            f"and not for {shape.model_type}: set it to 1."
        )


def _check_vocabulary(prepared: Prepared, tokenizer: Any, words: int) -> None:
    """A tokenizer may have more tokens than the model has embeddings, as long as none of them is used."""
    if len(tokenizer) <= words or isinstance(prepared.train, Stream):
        return
    used = max(prepared.train.highest_token(), pad_id(tokenizer))
    if used >= words:
        raise NpukitError(
            f"The rows have the token {tokenizer.convert_ids_to_tokens(used)!r}, number {used}, but the model has "
            f"embeddings for {words} tokens: take the model's own tokenizer, or resize the model first."
        )


def weights_dtype(config: Config, device: torch.device) -> torch.dtype:
    """Frozen weights are kept in the format they are computed in; trained ones in fp32, or small steps are lost."""
    if config.model.dtype != "auto":
        return getattr(torch, config.model.dtype)  # type: ignore[no-any-return]
    return choose_precision(config.training, device).dtype if config.tuning.is_adapter else torch.float32
