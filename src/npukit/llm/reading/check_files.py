"""Check that the files, names and packages in a configuration exist."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

from npukit import packages
from npukit.errors import NpukitError
from npukit.llm.config.nearest import nearest, nearest_file
from npukit.llm.config.options import Config
from npukit.llm.config.raw_config import MISSING
from npukit.llm.config.schema import options
from npukit.llm.models.folder import adapter_folder, is_adapter
from npukit.llm.models.outline import is_target, look_at
from npukit.llm.models.weights import broken_tokenizer, broken_weights, has_weights
from npukit.llm.reading.check_options import ConfigProblem, value_of
from npukit.llm.tasks.task import of as task_of
from npukit.report.report import counted

HUB_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?")


def model_files(config: Config) -> Iterator[ConfigProblem]:
    """Check that the model and its adapter exist and are complete."""
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
    ):  # otherwise an owner on the hub whose name is also a folder
        yield ConfigProblem("model.path", f"there is no folder {path}{nearest_file(path) or f', only {path.parent}.'}")
    yield from _targets(config)
    adapter = config.model.adapter
    if adapter and not is_adapter(adapter.expanduser()):
        yield ConfigProblem("model.adapter", f"{adapter} has no adapter_config.json: it is not an adapter.")
    elif adapter and not next(adapter_folder(adapter.expanduser()).glob("adapter_model.*"), None):
        yield ConfigProblem("model.adapter", f"{adapter} has no adapter_model.safetensors: it is not complete.")


def _targets(config: Config) -> Iterator[ConfigProblem]:
    """Check that an adapter finds its modules, if the model is local."""
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


def data_files(config: Config) -> Iterator[ConfigProblem]:
    """Check that the data files exist and can be read."""
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
    """Check that the number of validation rows leaves some to train on, if all rows are local."""
    from npukit.llm.data.count import about_rows
    from npukit.llm.data.sources import find_table

    tables = [find_table(source, config.data) for source in config.data.train if source.path != MISSING]
    total = sum(map(about_rows, tables))
    if tables and not any(table.hub for table in tables) and wanted >= total:
        text = f"validation takes {wanted:g} of {counted(total, 'row')}, which leaves none to train on."
        yield ConfigProblem("data.validation", text)


def template(config: Config) -> Iterator[ConfigProblem]:
    """Check that the chat template is known."""
    from npukit.llm.chat.templates import find_template

    try:
        if config.data.template is not None and task_of(config).uses_template(config.data):
            find_template(config.data.template, tokens=config.data.tokens)
    except NpukitError as error:
        yield ConfigProblem("data.template", str(error))


def words_or_files(config: Config) -> Iterator[ConfigProblem]:
    """If an option accepts a name or a path, an unknown name is treated as a path."""
    training = config.training
    if isinstance(training.parallel, Path):
        yield from _deepspeed_file(training.parallel)
    if isinstance(training.resume, Path) and not training.resume.is_dir():
        near = nearest(str(training.resume), ["auto", "never"])
        hint = f": did you mean {near}?" if near else nearest_file(training.resume) or "."
        yield ConfigProblem("training.resume", f"there is no checkpoint {training.resume}{hint}")
    existing = next(place for place in (training.output, *training.output.absolute().parents) if place.exists())
    if existing.is_file():
        yield ConfigProblem("training.output", f"{existing} is a file: name a folder.")
    elif not os.access(existing, os.W_OK):
        yield ConfigProblem("training.output", f"{existing} cannot be written to: name another folder.")


def _deepspeed_file(path: Path) -> Iterator[ConfigProblem]:
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


def missing_packages(config: Config) -> Iterator[ConfigProblem]:
    """Packages that an option needs, reported before a model is loaded in vain."""
    for key, option in options(Config).items():
        value = value_of(config, key) if option.needs else ()
        for one in value if isinstance(value, tuple) else (value,):
            package = option.needs.of(one) if option.needs else None
            if package and not packages.is_installed(package):
                name = package.replace("_", "-")
                text = f"{one} needs {name}, which is not installed: pip install {name}, or choose something else."
                yield ConfigProblem(key, text)
