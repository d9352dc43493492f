"""What is wrong with a valid configuration: options that do not go together, files that are not there."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from npukit import packages
from npukit.errors import NpukitError
from npukit.llm import families
from npukit.llm.config.media import is_media_data, is_media_model, media_type
from npukit.llm.config.nearest import nearest, nearest_file
from npukit.llm.config.options import Config, Source
from npukit.llm.config.raw_config import COMMAND_LINE, MISSING, Keys, Mistake, RawConfig
from npukit.llm.config.schema import options, plain
from npukit.llm.medium import COLUMNS, Kind
from npukit.llm.models.outline import is_target, look_at
from npukit.llm.models.weights import broken_tokenizer, broken_weights, has_weights
from npukit.llm.tasks.task import of as task_of
from npukit.report.report import counted


@dataclass(frozen=True)
class ConfigProblem:
    """A sentence about an option."""

    key: str
    text: str


def mistakes_in(config: Config, raw: RawConfig, files: bool = True) -> tuple[list[Mistake], list[str]]:
    """The mistakes in `config`, each where `raw` has its option; and notes about options without effect.

    Without `files` the files that it names are not looked for.
    """
    mistakes = [
        raw.mistake(keys, problem.text)
        for look in (CHECKS if files else CHECKS_WITHOUT_FILES)
        for problem in look(config, raw)
        for keys in [_keys(problem.key)]
    ]
    without_effect = list(_without_effect(config, raw))
    if raw.theirs:  # other tools' files carry such options along, and those tools do not mind
        return mistakes, [raw.worded(problem.text) for problem in without_effect]
    overridden = [problem for problem in without_effect if _was_overridden(problem.key, raw)]
    wrong = [problem for problem in without_effect if problem not in overridden]
    notes = [problem.text for problem in overridden]
    return mistakes + [raw.mistake(_keys(problem.key), f"{problem.text}.") for problem in wrong], notes


def _keys(key: str) -> Keys:
    return tuple(int(part) if part.isdigit() else part for part in key.split("."))


def _without_effect(config: Config, raw: RawConfig) -> Iterator[ConfigProblem]:
    """Options that were written although what was chosen makes no use of them."""
    for key, option in options(Config).items():
        when = option.when
        if when and _value(config, when.key) not in when.values and raw.has(_keys(key)):
            if _value(config, key) == option.field.default:
                continue
            chosen = f"{when.key} is {plain(_value(config, when.key))}"
            yield ConfigProblem(key, f"{raw.name(_keys(key))} has no effect because {chosen}")


def _was_overridden(key: str, raw: RawConfig) -> bool:
    """Whether the file is consistent, and the command line chose what makes no use of the option."""
    when = options(Config)[key].when
    assert when is not None
    return raw.place(_keys(when.key)) == COMMAND_LINE != raw.place(_keys(key))


def _value(config: Config, key: str) -> Any:
    value: Any = config
    for name in key.split("."):
        value = getattr(value, name)
    return value


def _options_together(config: Config, raw: RawConfig) -> Iterator[ConfigProblem]:
    data, training, tuning, model = config.data, config.training, config.tuning, config.model
    yield from (ConfigProblem(key, text) for key, text in task_of(config).problems(config))
    if data.streaming and training.max_steps is None:
        yield ConfigProblem("data.streaming", "streamed data has no known length: set training.max_steps.")
    if data.streaming and isinstance(data.validation, float) and 0 < data.validation < 1:
        yield ConfigProblem("data.validation", "a share of a stream is not known: give a number of rows, or files.")
    if data.pack_length and data.packing and data.pack_length < data.cutoff:
        text = f"rows of up to {data.cutoff} tokens (data.cutoff) do not fit into {data.pack_length}: increase it."
        yield ConfigProblem("data.pack_length", text)
    if data.train_on_prompt and data.last_answer_only:
        yield ConfigProblem(
            "data.last_answer_only", "data.train_on_prompt and data.last_answer_only contradict each other: remove one."
        )
    if training.eval_every and not data.validation:
        yield ConfigProblem("training.eval_every", "there is no data to evaluate on: set data.validation.")
    if training.early_stopping and not training.eval_every:
        yield ConfigProblem("training.early_stopping", "early stopping needs evaluations: set training.eval_every.")
    if training.load_best and not (training.eval_every and training.save_every):
        text = "the best model is a checkpoint found by evaluations: set training.eval_every and training.save_every."
        yield ConfigProblem("training.load_best", text)
    if training.best_metric != LOSS:
        yield ConfigProblem("training.best_metric", f"evaluations compute {LOSS} only: leave it out.")
    if training.min_learning_rate > training.learning_rate:
        text = f"training.min_learning_rate is above training.learning_rate ({training.learning_rate:g})."
        yield ConfigProblem("training.min_learning_rate", text)
    if training.warmup > 1 and training.warmup % 1:
        yield ConfigProblem(
            "training.warmup",
            f"{training.warmup:g} is neither a whole number of steps nor a share below 1.",
        )
    if training.optimizer not in ("adamw", "adam", "sgd") and training.parallel != "ddp":
        yield ConfigProblem(
            "training.optimizer", f"{training.optimizer} needs whole parameters: set training.parallel=ddp."
        )
    if training.optimizer not in ("adamw", "adam", "sgd") and tuning.plus_ratio:
        yield ConfigProblem("training.optimizer", f"LoRA+ goes with adamw, adam or sgd, not with {training.optimizer}.")
    if training.offload and training.parallel == "ddp":
        yield ConfigProblem("training.offload", "ddp cannot offload: use zero2, zero3 or fsdp2.")
    if model.from_config and tuning.is_adapter:
        yield ConfigProblem("model.from_config", "new weights must all be trained: set tuning.method=full.")
    if model.rope and not ("rope_type" in model.rope and ("factor" in model.rope or model.length)):
        yield ConfigProblem("model.rope", "model.rope needs a rope_type, and a factor or model.length.")
    if model.dtype == "float16" and not tuning.is_adapter:
        yield ConfigProblem("model.dtype", "float16 is too imprecise for trained weights: use float32 or bfloat16.")
    if model.quantize and not tuning.is_adapter:
        yield ConfigProblem("model.quantize", f"quantised weights cannot be trained by {tuning.method}: use lora.")
    if model.quantize and training.parallel != "ddp":
        yield ConfigProblem("model.quantize", "quantised weights are not sharded: set training.parallel=ddp.")
    if tuning.layers == 0:
        yield ConfigProblem(
            "tuning.layers", "tuning.layers must not be 0: 2 trains the last two layers, -2 the first two."
        )
    if (tuning.turns or tuning.method == "adalora") and training.parallel != "ddp":
        name = "tuning.turns" if tuning.turns else "tuning.method"
        yield ConfigProblem(name, f"{tuning.turns or tuning.method} needs whole parameters: set training.parallel=ddp.")
    if tuning.converts and (tuning.dora or "rank_pattern" in tuning.peft):
        yield ConfigProblem("tuning.convert", "an adapter with dora or a rank_pattern cannot be saved as a plain LoRA.")
    if tuning.init == "lora_ga" and tuning.method == "lora" and (model.quantize or data.streaming):
        yield ConfigProblem(
            "tuning.init", "lora_ga computes gradients of whole weights: no quantised weights, no streaming."
        )
    if model.adapter and tuning.method != "lora":
        yield ConfigProblem(
            "model.adapter", f"an adapter can only be continued with lora; tuning.method is {tuning.method}."
        )


LOSS = "eval_loss"
HUB_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?")


def _model_files(config: Config, raw: RawConfig) -> Iterator[ConfigProblem]:
    path = Path(config.model.path).expanduser()
    if config.model.path == MISSING:
        return
    if path.is_file():
        yield ConfigProblem("model.path", f"{path} is a file: give the folder that contains it.")
    elif path.is_dir() and not (path / "config.json").is_file():
        inside = [file.parent for file in path.glob("*/config.json")] + [
            file.parent for file in path.glob("*/*/config.json")
        ]
        hint = f": did you mean {inside[0]}?" if inside else ": it is not a model."
        yield ConfigProblem("model.path", f"{path} has no config.json{hint}")
    elif path.is_dir():
        yield from _config_json(path / "config.json")
        sentences = broken_tokenizer(path)
        if not config.model.from_config:
            sentences += broken_weights(path)
            if not has_weights(path):
                sentences.append(f"{path} has no weights: download them, or set model.from_config for new ones.")
        yield from (ConfigProblem("model.path", sentence) for sentence in sentences)
    elif not HUB_NAME.fullmatch(config.model.path) or config.model.path.startswith("."):
        yield ConfigProblem("model.path", f"there is no folder {path}{nearest_file(path) or '.'}")
    elif path.parent != Path() and any(
        path.parent.glob("*/config.json")
    ):  # else an owner on the hub, a folder by chance
        yield ConfigProblem("model.path", f"there is no folder {path}{nearest_file(path) or f', only {path.parent}.'}")
    yield from _targets(config)
    adapter = config.model.adapter
    if adapter and not (adapter.expanduser() / "adapter_config.json").is_file():
        yield ConfigProblem("model.adapter", f"{adapter} has no adapter_config.json: it is not an adapter.")
    elif adapter and not next(adapter.expanduser().glob("adapter_model.*"), None):
        yield ConfigProblem("model.adapter", f"{adapter} has no adapter_model.safetensors: it is not complete.")


def _targets(config: Config) -> Iterator[ConfigProblem]:
    """Whether an adapter finds its modules, where the model is at hand."""
    targets = config.tuning.targets
    model = look_at(config.model) if config.tuning.is_adapter and targets != "all-linear" else None
    modules = list(model.linear()) if model else []
    for target in (targets,) if isinstance(targets, str) else targets:
        pattern = target if isinstance(targets, str) else (target,)
        if modules and not any(is_target(module, pattern) for module in modules):
            names = sorted({module.rpartition(".")[2] for module in modules})
            near = nearest(target, names)
            hint = f"did you mean {near}?" if near else f"choose from {', '.join(names)}, or all-linear."
            yield ConfigProblem("tuning.targets", f"the model has no linear module {target}: {hint}")


def _config_json(file: Path) -> Iterator[ConfigProblem]:
    try:
        if not isinstance(json.loads(file.read_text(encoding="utf-8")), dict):
            yield ConfigProblem("model.path", f"{file} is not a JSON object: it is not a model's.")
    except (ValueError, OSError) as error:
        yield ConfigProblem("model.path", f"{file} cannot be read: {error}.")


def _data_files(config: Config, raw: RawConfig) -> Iterator[ConfigProblem]:
    from npukit.llm.data.check import check_files

    sources = {f"data.train.{index}": source for index, source in enumerate(config.data.train)}
    if isinstance(config.data.validation, tuple):
        sources |= {f"data.validation.{index}": source for index, source in enumerate(config.data.validation)}
    for key, source in sources.items():
        if source.path == MISSING:
            continue
        alone = config.data.model_copy(update={"train": (source,), "validation": 0.0})
        sentences = list(check_files(alone, task_of(config)))
        yield from (ConfigProblem(key, sentence) for sentence in sentences)
        if sentences:
            return
    wanted = config.data.validation
    if not config.data.streaming and not isinstance(wanted, tuple) and wanted >= 1:
        yield from _enough_rows(config, wanted)


def _enough_rows(config: Config, wanted: float) -> Iterator[ConfigProblem]:
    """Whether a number of rows for validation leaves some to train on, where all of them are on this machine."""
    from npukit.llm.data.count import about_rows
    from npukit.llm.data.sources import find_table

    tables = [find_table(source, config.data) for source in config.data.train if source.path != MISSING]
    total = sum(map(about_rows, tables))
    if tables and not any(table.hub for table in tables) and wanted >= total:
        text = f"validation takes {wanted:g} of {counted(total, 'row')}, which leaves none to train on."
        yield ConfigProblem("data.validation", text)


def _media(config: Config, raw: RawConfig) -> Iterator[ConfigProblem]:
    """What can be known by name alone; the rows of other data say it themselves."""
    model = config.model.path
    if not Path(model).expanduser().exists() and is_media_model(model):
        yield ConfigProblem("model.path", _not_for(model))
        return
    validation = config.data.validation if isinstance(config.data.validation, tuple) else ()
    for name, sources in (("train", config.data.train), ("validation", validation)):
        for index, source in enumerate(sources):
            key, kinds = f"data.{name}.{index}", kinds_of(source)
            if kind := next((kind for kind in kinds if kind not in _taken(model)), None):
                known = ", ".join(sorted(name for name, vision in families.visions().items() if kind in vision.kinds))
                what = {"image": "images", "video": "videos", "audio": "audio"}[kind]
                text = (
                    f"{source.path} has {what}, and {model} is not known to take them: use a model whose model_type "
                    f"is one of {known}."
                )
                yield ConfigProblem(key, text)
            if is_media_data(source.path) and not kinds and not Path(source.path).exists():
                yield ConfigProblem(key, f"{source.path} is a multimodal data set: it is not supported yet.")


def _not_for(model: str) -> str:
    """Why a model that is no model of text alone cannot be trained."""
    if kind := media_type(model):
        return f"{model} is a multimodal model of the type {kind}: it is not supported yet."
    return (
        f"{model} is a multimodal model that needs its own Python code: it is not supported, because transformers does "
        "not include it."
    )


def kinds_of(source: Source) -> list[Kind]:
    """What the rows of a data set have besides text, as far as its options say it."""
    from npukit.llm.data.presets import PRESETS

    if source.preset in PRESETS:
        return [PRESETS[source.preset].kind]
    return [kind for column, kind in COLUMNS.items() if column in source.columns]


def _taken(model: str) -> Collection[Kind]:
    """What a model takes besides text, by its folder, or by its name."""
    try:
        config = json.loads((Path(model).expanduser() / "config.json").read_text(encoding="utf-8"))
        vision = families.vision_of(config)
    except (OSError, ValueError):
        vision = families.visions().get(media_type(model) or "")
    return vision.kinds if vision else ()


def _template(config: Config, raw: RawConfig) -> Iterator[ConfigProblem]:
    from npukit.llm.chat.templates import find_template

    try:
        if config.data.template is not None and task_of(config).uses_template(config.data):
            find_template(config.data.template, tokens=config.data.tokens)
    except NpukitError as error:
        yield ConfigProblem("data.template", str(error))


def _words_or_files(config: Config, raw: RawConfig) -> Iterator[ConfigProblem]:
    """Where a word or a path may be written, a word that is not known looks like a path."""
    training = config.training
    if isinstance(training.parallel, Path):
        yield from _deepspeed_file(training.parallel, raw)
    if isinstance(training.resume, Path) and not training.resume.is_dir():
        near = nearest(str(training.resume), ["auto", "never"])
        hint = f": did you mean {near}?" if near else nearest_file(training.resume) or "."
        yield ConfigProblem("training.resume", f"there is no checkpoint {training.resume}{hint}")
    existing = next(place for place in (training.output, *training.output.absolute().parents) if place.exists())
    if existing.is_file():
        yield ConfigProblem("training.output", f"{existing} is a file: name a folder.")
    elif not os.access(existing, os.W_OK):
        yield ConfigProblem("training.output", f"{existing} cannot be written to: name another folder.")


def _deepspeed_file(path: Path, raw: RawConfig) -> Iterator[ConfigProblem]:
    if not path.is_file():
        words = ["ddp", "fsdp2", "zero1", "zero2", "zero3"]
        near = nearest(str(path), words)
        hint = f": did you mean {near}?" if near else f", and it is none of {', '.join(words)}."
        yield ConfigProblem("training.parallel", f"there is no DeepSpeed file {path}{hint}")
        return
    try:
        if not isinstance(json.loads(path.read_text(encoding="utf-8")), dict):
            yield ConfigProblem("training.parallel", f"{path} is not a JSON object: it is not a DeepSpeed file.")
    except (ValueError, OSError) as error:
        yield ConfigProblem("training.parallel", f"{path} is not a DeepSpeed file: {error}.")


def _packages(config: Config, raw: RawConfig) -> Iterator[ConfigProblem]:
    """Packages that an option needs, before a model is loaded in vain."""
    for key, option in options(Config).items():
        value = _value(config, key) if option.needs else ()
        for one in value if isinstance(value, tuple) else (value,):
            package = option.needs.of(one) if option.needs else None
            if package and not packages.is_installed(package):
                name = package.replace("_", "-")
                text = f"{one} needs {name}, which is not installed: pip install {name}, or choose something else."
                yield ConfigProblem(key, text)


CHECKS: tuple[Callable[[Config, RawConfig], Iterator[ConfigProblem]], ...] = (
    _options_together,
    _media,
    _model_files,
    _data_files,
    _template,
    _words_or_files,
    _packages,
)
CHECKS_WITHOUT_FILES = (_options_together, _media, _template)
