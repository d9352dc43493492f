"""Read how a model is to be used: a file, flags in our words or another tool's, and what the run left beside it.

    reading = read_use("chat", ["run/", "--temperature", "0.7"], os.environ)
    reading = read_use("infer", ["--adapters", "xxx/checkpoint-100", "--load_data_args", "true"], os.environ)
    reading = read_use("serve", ["deploy.yaml"], os.environ)      # LLaMA-Factory's or ms-swift's YAML, or ours
    reading.use.model.path, reading.use.adapters, reading.use.chat.template, reading.use.sampling.temperature, …
    reading.notes                                                 # to be shown; every key without effect is in it

The first word may be a YAML file, a model's folder or name, or an adapter's folder. Mistakes are raised together.
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from npukit.errors import NpukitError
from npukit.llm.chat.templates import find_template
from npukit.llm.config.dialects.table import Dialect, load, row_of
from npukit.llm.config.dialects.translator import recognise
from npukit.llm.config.dialects.use import DIALECTS
from npukit.llm.config.dialects.use.llama_factory import TABLE as LLAMA_FACTORY_TABLE
from npukit.llm.config.dialects.use.swift import TABLE as SWIFT_TABLE
from npukit.llm.config.names import OptionNames
from npukit.llm.config.nearest import nearest_file
from npukit.llm.config.raw_config import COMMAND_LINE, MISSING, Keys, Mistake, Mistakes, Origin, RawConfig
from npukit.llm.config.record import RunRecord, find_record
from npukit.llm.config.schema import options
from npukit.llm.config.use import IN_VLLM, USED, Use, Verb
from npukit.llm.config.validation import validate
from npukit.llm.models.folder import base_of, is_adapter
from npukit.llm.reading.written import read_written, set_own, translate

FILES = (".yaml", ".yml", ".json")
HUB_NAME = re.compile(r"\w[\w.-]*/[\w.-]+")
SHORT = {"adapter": "adapters", "chat_template": "chat.template", "max_tokens": "sampling.max_new_tokens"}


@dataclass(frozen=True)
class UseReading:
    """A configuration, the tool in whose terms it was written, and notes for its author."""

    use: Use
    notes: list[str]
    dialect: str = "npukit"
    written: frozenset[str] = frozenset()  # the options that somebody wrote; others are defaults of the tool or the run


def read_use(verb: Verb, words: Sequence[str], environ: Mapping[str, str] = os.environ) -> UseReading:
    """The configuration from the words of a command line, completed with what is known about the model's run.

    >>> read_use("chat", ["--adapters", "run", "--stream", "true"]).use.model.path
    'Qwen/Qwen2-7B-Instruct'
    """
    file, model, rows, words = _first(words)
    raw, written = read_written(file, words)
    mistakes: list[Mistake] = []
    notes: list[str] = []
    dialect = _dialect(raw, verb, is_file=file is not None)
    own = _taken_out(raw, own_names(verb), dialect)
    names = OptionNames({known.name: known.rows for known in DIALECTS}, f"npukit {verb} --help")
    if dialect:
        raw, mistakes, notes = translate(dialect, raw, environ, verb, names)
    for keys, value, place, name in own:
        raw.set(keys, value, place, name)
    set_own(raw, written, environ)
    if model:
        raw.set(("model", "path"), model, COMMAND_LINE)
    if rows:
        raw.set(("data", "input"), rows, COMMAND_LINE)
    _adapter_for_a_model(raw)
    _ours_among_vllms(raw)
    use, wrong = validate(raw, Use, names)
    mistakes += wrong
    if use:
        use = _completed(use, verb, notes)
        mistakes += _missing_files(use, raw)
    if mistakes or use is None:
        raise Mistakes(mistakes)
    chosen = frozenset(".".join(map(str, keys)) for keys in raw.places if raw.has(keys))
    return UseReading(use, notes + _without_effect(verb, raw), dialect.name if dialect else "npukit", chosen)


def _first(words: Sequence[str]) -> tuple[Path | None, str | None, list[str], list[str]]:
    """The file or the model before the options, and the rows to answer after it."""
    bare = list(itertools.takewhile(lambda word: not word.startswith("--") and "=" not in word, words))
    rest = list(words[len(bare) :])
    if bare and bare[0].endswith(FILES) and not Path(bare[0]).is_dir():
        return Path(bare[0]), None, bare[1:], rest
    return None, bare[0] if bare else None, bare[1:], rest


def own_names(verb: Verb) -> dict[str, str]:
    """npukit's options by their names as flags: `temperature` is sampling.temperature.

    If two groups have an option of the same name, the verb's group takes precedence.
    """
    keys = [key for key in options(Use) if key.count(".") == 1 and not key.startswith("adapters.")]
    keys.sort(key=lambda key: (key.split(".")[0] in USED[verb], not key.startswith("model.")))
    return {**{key.split(".")[1]: key for key in keys if key != "model.path"}, **SHORT}


def is_anothers(key: str) -> bool:
    """Whether a key is an option of LLaMA-Factory or ms-swift for using a model, or one of npukit's with its group.

    >>> is_anothers("adapter_name_or_path"), is_anothers("sampling.top_p"), is_anothers("device")
    (True, True, False)
    """
    key = key.replace("-", "_")
    return key in options(Use) or any(row_of(key, rows) for rows in (load(LLAMA_FACTORY_TABLE), load(SWIFT_TABLE)))


def is_known(flag: str, verb: Verb) -> bool:
    """Whether `read_use` understands a flag of any tool."""
    key = flag.removeprefix("--").replace("-", "_")
    return key in own_names(verb) or is_anothers(key)


def _dialect(raw: RawConfig, verb: Verb, is_file: bool) -> Dialect | None:
    """Whose words these are; None is our own: MODEL and --adapter, where ms-swift has --model and --adapters."""
    if any(isinstance(value, dict) and key in Use.model_fields for key, value in raw.values.items()):
        return None
    own = own_names(verb).keys() - {"adapters"}
    if all(key in own for key in raw.values):
        return None
    return recognise(raw.values, DIALECTS if is_file else DIALECTS[::-1])


def _taken_out(
    raw: RawConfig, own: Mapping[str, str], dialect: Dialect | None
) -> Sequence[tuple[Keys, Any, Origin, str]]:
    """npukit's short flags that the dialect does not have, as the options that they stand for."""
    taken = []
    for key, value in list(raw.values.items()):
        is_group = isinstance(value, dict) and key in Use.model_fields
        if key in own and not is_group and not (dialect and dialect.row(key)):
            taken.append((tuple(own[key].split(".")), value, raw.place((key,)), raw.name((key,))))
            del raw.values[key]
    return taken


def _adapter_for_a_model(raw: RawConfig) -> None:
    """An adapter's folder may be given as the model, and its model need not be given at all."""
    group = raw.values.get("model")
    path = group.get("path") if isinstance(group, dict) else None
    adapters = raw.values.get("adapters") or []
    adapters = [adapters] if isinstance(adapters, str) else adapters
    if isinstance(path, str) and _is_adapter(path) and isinstance(adapters, list):
        raw.set(("adapters",), [path, *adapters], raw.place(("model", "path")))
        adapters, path = raw.values["adapters"], None
    if path is None and adapters and isinstance(adapters, list):
        first = adapters[0].get("path") if isinstance(adapters[0], dict) else str(adapters[0]).rpartition("=")[2]
        if below := base(str(first)):
            raw.set(("model", "path"), below, raw.place(("adapters",)), "adapters")
        elif isinstance(group, dict):
            group.pop("path", None)


def _ours_among_vllms(raw: RawConfig) -> None:
    """An option among vLLM's own that npukit has as well applies to both engines."""
    engine = raw.values.get("engine")
    extra = engine.get("extra") if isinstance(engine, dict) else None
    for name in IN_VLLM:
        if isinstance(extra, dict) and name in extra:
            raw.set(("engine", name), extra.pop(name), raw.place(("engine", "extra")), name)


def _is_adapter(path: str) -> bool:
    folder = Path(path).expanduser()
    return is_adapter(folder) and not (folder / "config.json").is_file()


def base(adapter: str) -> str | None:
    """The base model of an adapter. The run's record has it if the adapter's own file does not."""
    folder = Path(adapter).expanduser()
    try:
        return base_of(folder)
    except NpukitError:
        record = find_record(folder)
        return record.model if record else None


def _completed(use: Use, verb: Verb, notes: list[str]) -> Use:
    """The configuration completed from the record of the run that trained the model."""
    nameless = [adapter.path for adapter in use.adapters if adapter.name is None]
    folder = Path(nameless[-1] if nameless else use.model.path).expanduser()
    record = find_record(folder) if folder.is_dir() else None
    chat = use.chat
    if chat.tokenizer is None and nameless and (folder / "tokenizer_config.json").is_file():
        chat = chat.model_copy(update={"tokenizer": str(folder)})
    if record and chat.from_run:
        update: dict[str, Any] = {"system": chat.system if chat.system is not None else record.system}
        for limit in (name for name in type(chat).model_fields if name.startswith(("image_", "video_"))):
            update[limit] = getattr(chat, limit) or getattr(record.data, limit, None)
        if chat.template is None:
            update["template"] = _template(record, notes)
        chat = chat.model_copy(update=update)
    data = use.data
    if verb == "infer" and data.of_run and not data.input:
        if record is None or record.data is None:
            raise NpukitError(f"There is no record of a run's data beside {folder}: name the rows to answer.")
        # Next to the model, like ms-swift, whose guide uses an adapter and then the merged model from one folder.
        answers = data.output or folder / "infer_result.jsonl"
        asked = {"run": record.data, "run_seed": record.seed, "folder": record.data.folder, "output": answers}
        data = data.model_copy(update=asked)
    export = use.export
    if verb == "export" and export.output is None:
        export = export.model_copy(update={"output": Path(f"{str(folder).rstrip('/')}-merged")})
    return use.model_copy(update={"chat": chat, "data": data, "export": export})


def _template(record: RunRecord, notes: list[str]) -> str | None:
    """The run's template, if npukit has it; otherwise the one that was saved with the tokenizer."""
    if record.template is None:
        return None
    try:
        find_template(record.template)
        return record.template
    except NpukitError:
        notes.append(f"template: {record.template} of {record.file} is not known here; the tokenizer's own is used")
        return None


def _missing_files(use: Use, raw: RawConfig) -> list[Mistake]:
    paths = [(("model", "path"), use.model.path), *((("adapters",), adapter.path) for adapter in use.adapters)]
    return [
        raw.mistake(keys, f"there is no folder {path}{nearest_file(Path(path).expanduser()) or '.'}")
        for keys, path in paths
        if path != MISSING and not Path(path).expanduser().is_dir() and not _may_be_on_a_hub(path)
    ]


def _may_be_on_a_hub(path: str) -> bool:
    if Path(path).expanduser().is_file():
        return False
    return bool(HUB_NAME.fullmatch(path)) and not Path(path).parent.is_dir()


def _without_effect(verb: Verb, raw: RawConfig) -> list[str]:
    """Options that somebody wrote and that have no effect on this verb."""
    written = [keys for keys in raw.places if raw.has(keys) and keys[0] in Use.model_fields]
    names = [raw.name(keys) for keys in written if keys[0] not in USED[verb]]
    return [f"{', '.join(dict.fromkeys(names))}: without effect in npukit {verb}"] if names else []
