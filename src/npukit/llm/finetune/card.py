"""The model card of a trained model: the README.md that hubs show."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from npukit.llm.config.options import Config, Source
from npukit.report.markdown import cell
from npukit.report.writing import write_text
from npukit.train.watch import Summary

TOLD = ("result", "steps", "time", "loss", "evaluation", "best", "speed")  # rows of the summary that the card shows


def write_card(config: Config, summary: Summary, folder: Path) -> None:
    """Write README.md, replacing the almost empty one that PEFT writes.

    >>> write_card(config, summary, Path("runs/lora"))
    """
    write_text(folder / "README.md", card(config, summary, folder))


def card(config: Config, summary: Summary, folder: Path) -> str:
    """Return the card as Markdown, with the front matter that hubs read."""
    base, license_name = _where(config.model.path), _license(config.model.path)
    name = folder.resolve().name
    heading = f"a LoRA adapter for {base}" if config.tuning.method == "lora" else f"{base}, fine-tuned"
    terms = (
        f"The base model's licence is {license_name}; it applies to this model, too."
        if license_name
        else ("The base model's licence applies to this model, too: see its page or folder.")
    )
    parts = [
        _front_matter(config, license_name),
        f"# {name}: {heading}",
        f"Trained with npukit on {summary.world_size} x {summary.device}.",
        "## Data",
        "\n".join(f"- {_where(source.path)}" for source in _sources(config)),
        "## Training",
        _table(_settings(config) | {name: value for name, value in summary.rows() if name in TOLD}),
        "`npukit.yaml` in this folder repeats the run, `log.jsonl` has its figures.",
        "## Use",
        f"```\nnpukit chat {folder}\n```",
        *([f"```python\n{_load(config, base, folder)}\n```"] if config.tuning.method != "bottleneck" else []),
        "## Licence",
        terms,
    ]
    return "\n\n".join(parts) + "\n"


def _front_matter(config: Config, license_name: str) -> str:
    import yaml

    fields: dict[str, Any] = {"library_name": "transformers", "pipeline_tag": "text-generation", "tags": ["npukit"]}
    if config.tuning.method == "lora":
        fields |= {"library_name": "peft", "tags": ["lora", "npukit"]}
    if not Path(config.model.path).exists():  # it is a name on a hub
        fields["base_model"] = config.model.path
    if license_name:
        fields["license"] = license_name
    return f"---\n{yaml.safe_dump(fields, sort_keys=False)}---"


def _settings(config: Config) -> dict[str, str]:
    training, tuning = config.training, config.tuning
    method = f"lora, rank {tuning.rank}, alpha {tuning.alpha or 2 * tuning.rank:g}" if tuning.method == "lora" else ""
    return {
        "method": method or tuning.method,
        "learning rate": f"{training.learning_rate:g}, {training.schedule}",
        "rows per step": f"{training.batch_size} x {training.accumulation} on each device",
        "longest row": f"{config.data.cutoff} tokens",
    }


def _table(rows: dict[str, str]) -> str:
    return "\n".join(["| | |", "|---|---|", *(f"| {name} | {cell(value)} |" for name, value in rows.items())])


def _load(config: Config, base: str, folder: Path) -> str:
    processor = folder / "preprocessor_config.json"
    kind = "AutoModelForImageTextToText" if processor.exists() else "AutoModelForCausalLM"
    if processor.exists() and "feature_extractor_type" in processor.read_text(encoding="utf-8"):
        kind = "AutoModelForMultimodalLM"  # the processor is for audio
    model = f'{kind}.from_pretrained("{base if config.tuning.method == "lora" else folder}")'
    lines = [f"from transformers import {kind}, AutoTokenizer", f"model = {model}"]
    if config.tuning.method == "lora":
        lines = ["from peft import PeftModel", *lines, f'model = PeftModel.from_pretrained(model, "{folder}")']
    return "\n".join([*lines, f'tokenizer = AutoTokenizer.from_pretrained("{folder}")'])


def _sources(config: Config) -> tuple[Source, ...]:
    validation = config.data.validation if isinstance(config.data.validation, tuple) else ()
    return (*config.data.train, *validation)


def _where(path: str) -> str:
    """Return the absolute path of a folder or file. A name on a hub is returned as it is."""
    return str(Path(path).resolve()) if Path(path).exists() else path


def _license(model: str) -> str:
    """Return the licence from the base model's card, if the model is on this machine."""
    import yaml

    readme = Path(model).expanduser() / "README.md"
    if not readme.is_file():
        return ""
    _, _, rest = readme.read_text(encoding="utf-8", errors="replace").partition("---\n")
    try:
        fields = yaml.safe_load(rest.partition("\n---")[0])
    except yaml.YAMLError:
        return ""
    return str(fields.get("license") or "") if isinstance(fields, dict) else ""
