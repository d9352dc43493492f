"""Reference pages of facts: cards, models, versions, variables and error codes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from npukit.facts.cards import DEFAULT_CARD, cards
from npukit.facts.compatibility import pythons_by_torch, releases
from npukit.facts.data import load_yaml
from npukit.facts.errors import KnownError, errors_of
from npukit.facts.models import known_models
from npukit.facts.variables import conflicts, variables
from npukit.llm import families

SERIES = {"A2": "Atlas A2 training series", "A3": "Atlas A3 training series", "": ""}
ERRORS = {
    "torch_npu": "torch_npu",
    "acl": "CANN's runtime (ACL)",
    "aclnn": "Operators (aclnn)",
    "hccl": "HCCL return codes",
    "cann": "CANN's components",
    "python": "Messages without a code",
}
LINKS = {"mesh": "HCCS, every card to every other", "pairs": "HCCS, two dies per package", "pcie": "PCIe"}


def cards_page() -> str:
    """Every card."""
    lines = [
        "# Cards",
        "",
        f"Names for `--card`; the default is {DEFAULT_CARD}. All of them can be simulated. Cards that are sold as 910C "
        "are those of the Atlas A3 training series (910_93xx): one package holds two dies, and each die is a device.",
        "",
        "Figures come from public sources; none was measured on a card. An empty cell means that no figure was found.",
        "",
        "| card | series | memory | bf16 | TFLOP/s (bf16, else fp16) | memory GB/s | links | devices per server |",
        "|---|---|---:|---|---:|---:|---|---:|",
    ]
    for card in cards().values():
        lines.append(
            f"| {card.name} | {SERIES[card.series]} | {card.memory_mib / 1024:.0f} GiB | {'yes' if card.bf16 else 'no'}"
            f" | {card.tflops or ''} | {card.bandwidth_gbs or ''} | {LINKS[card.links]} | {card.per_server} |"
        )
    return "\n".join(lines) + "\n"


def models_page() -> str:
    """Families that are known, and models whose sizes are."""
    lines = [
        "# Models",
        "",
        "npukit knows the families below: packing without padding, chunked loss and fused NPU operators in training, "
        "and the paged cache in serving. They are tested with small random models. Nothing is assumed about other "
        "causal language models of transformers: they are trained without packing, and how they are served is decided "
        "when they are loaded ([How serving works](../concepts/serving-engine.md)). `model_type` is in a model's "
        "`config.json`.",
        "",
        "| `model_type` | packing | fused rotary embedding on NPUs | paged serving | remarks |",
        "|---|---|---|---|---|",
    ]
    for name, family in sorted(families.known().items()):
        remark = {"latent": "latent attention (MLA)", "capped": "capped attention scores"}.get(family.attention, "")
        if family.experts:
            remark = ", ".join(filter(None, [remark, "mixture of experts"]))
        paged = family.attention == "plain"
        yes = ["yes" if value else "no" for value in (family.can_pack, family.fused_rotary, paged)]
        lines.append(f"| `{name}` | {yes[0]} | {yes[1]} | {yes[2]} | {remark} |")
    lines += [
        "",
        "For example, Qwen3-30B-A3B is a `qwen3_moe`: the family is supported; "
        "this model itself was not run. Serving uses one card; `--engine vllm` is for models that need several.",
        "",
        "Models of video or audio can be neither trained nor served; PPO is not supported.",
        "",
        "## Known by name",
        "",
        "`npukit plan` knows the sizes of these models without a download; a name on a hub may continue with a hyphen "
        "(`Qwen2-7B-Instruct`).",
        "",
        "| model | `model_type` | layers | hidden size | heads (key/value) | vocabulary |",
        "|---|---|---:|---:|---|---:|",
    ]
    for row in known_models():
        heads = f"{row['heads']} ({row['kv']})"
        sizes = f"{row['layers']} | {row['hidden']:,} | {heads} | {row['vocabulary']:,}"
        lines.append(f"| {row['name']} | `{row['type']}` | {sizes} |")
    return "\n".join(lines) + "\n"


def versions_page() -> str:
    """Which torch_npu belongs to which torch, CANN and Python."""
    lines = [
        "# Versions of torch, torch_npu, CANN and Python",
        "",
        "From torch_npu's published tables, read in November 2026. A combination that is not listed is unknown, not "
        "necessarily wrong. `npukit doctor` compares a machine with this table.",
        "",
        "| torch_npu | torch | CANN |",
        "|---|---|---|",
        *(f"| {release.torch_npu} | {release.torch} | {release.cann} |" for release in releases()),
        "",
        "## Python",
        "",
        "| torch | Python versions of torch_npu |",
        "|---|---|",
        *(f"| {torch} | {', '.join(pythons)} |" for torch, pythons in pythons_by_torch().items()),
    ]
    return "\n".join(lines) + "\n"


def variables_page() -> str:
    """npukit's own variables, and those of Ascend that `doctor` knows."""
    lines = ["# Environment variables", "", "## npukit's own", "", "| variable | meaning | default |", "|---|---|---|"]
    lines += [f"| `{row['name']}` | {row['meaning']} | {row.get('default', '')} |" for row in own_variables()]
    lines += [
        "",
        "Other variables that begin with `NPUKIT_` are how npukit's processes talk to each other; do not set them.",
        "",
        "## Ascend's",
        "",
        "`npukit doctor` checks their values, and suggests the right name for a misspelled one.",
        "",
        "| variable | meaning | default |",
        "|---|---|---|",
    ]
    for variable in variables().values():
        meaning = f"{variable.meaning}; on NPUs use `{variable.instead}`" if variable.of_cuda else variable.meaning
        if variable.deprecated_for:
            meaning += f"; deprecated, use `{variable.deprecated_for}`"
        lines.append(
            f"| `{variable.name}` | {_cell(meaning)} | {f'`{variable.default}`' if variable.default else ''} |"
        )
    lines += ["", "## Pairs that do not go together", "", "| variables | why | do |", "|---|---|---|"]
    lines += [
        f"| `{conflict.first}`, `{conflict.second}` | {conflict.why} | `{conflict.remedy}` |"
        for conflict in conflicts()
    ]
    return "\n".join(lines) + "\n"


def own_variables() -> list[dict[str, Any]]:
    """The variables of npukit that users may set."""
    rows: list[dict[str, Any]] = load_yaml(Path(__file__).with_name("variables.yaml"))
    return rows


def errors_page() -> str:
    """Every error that `npukit explain` knows."""
    lines = [
        "# Error codes",
        "",
        "What `npukit explain` knows. `npukit explain CODE` prints causes and remedies in full; "
        "see [Understand an error](../guides/errors.md).",
    ]
    for family, title in ERRORS.items():
        lines += ["", f"## {title}", "", "| code | meaning | what to do first |", "|---|---|---|"]
        lines += [_error(error) for error in errors_of(family)]
    return "\n".join(lines) + "\n"


def _error(error: KnownError) -> str:
    name = f"<br>{error.name}" if error.name else ""
    return f"| `{error.code}`{name} | {_cell(error.meaning)} | {_cell(error.remedies[0] if error.remedies else '')} |"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")
