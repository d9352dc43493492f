"""Reference pages of facts: cards, models, versions, variables and error codes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from npukit.cli.reference.template import fill, row
from npukit.facts.cards import DEFAULT_CARD, cards
from npukit.facts.compatibility import pythons_by_torch, releases
from npukit.facts.data import load_yaml
from npukit.facts.errors import KnownError, errors_of
from npukit.facts.models import known_models
from npukit.facts.variables import Variable, conflicts, variables
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
REMARKS = {
    "mixed": "states of a fixed size in most layers",
    "latent": "latent attention (MLA)",
    "capped": "capped attention scores",
}


def cards_page() -> str:
    """Every card."""
    rows = (
        row(
            card.name,
            SERIES[card.series],
            f"{card.memory_mib / 1024:.0f} GiB",
            _yes(card.bf16),
            card.tflops or "",
            card.bandwidth_gbs or "",
            LINKS[card.links],
            card.per_server,
        )
        for card in cards().values()
    )
    return fill("cards.md", default=DEFAULT_CARD, cards=rows)


def models_page() -> str:
    """Families that are known, and models whose sizes are."""
    known = (
        row(
            f"`{name}`",
            *map(_yes, (family.can_pack, family.fused_rotary, family.is_paged)),
            ", ".join(filter(None, (REMARKS.get(family.attention), "mixture of experts" if family.experts else None))),
        )
        for name, family in sorted(families.known().items())
    )
    sizes = (
        row(
            model["name"],
            f"`{model['model_type']}`",
            model["num_hidden_layers"],
            f"{model['hidden_size']:,}",
            f"{model['num_attention_heads']} ({model['num_key_value_heads']})",
            f"{model['vocab_size']:,}",
        )
        for model in known_models()
    )
    return fill("models.md", families=known, models=sizes)


def versions_page() -> str:
    """Which torch_npu belongs to which torch, CANN and Python."""
    pairs = (row(release.torch_npu, release.torch, release.cann) for release in releases())
    pythons = (row(torch, ", ".join(versions)) for torch, versions in pythons_by_torch().items())
    return fill("versions.md", releases=pairs, pythons=pythons)


def variables_page() -> str:
    """npukit's own variables, and those of Ascend that `doctor` knows."""
    own = (
        row(f"`{variable['name']}`", variable["meaning"], variable.get("default", "")) for variable in own_variables()
    )
    pairs = (
        row(f"`{conflict.first}`, `{conflict.second}`", conflict.why, f"`{conflict.remedy}`")
        for conflict in conflicts()
    )
    return fill("variables.md", own=own, ascend=map(_variable, variables().values()), conflicts=pairs)


def _variable(variable: Variable) -> str:
    meaning = f"{variable.meaning}; on NPUs use `{variable.instead}`" if variable.of_cuda else variable.meaning
    if variable.deprecated_for:
        meaning += f"; deprecated, use `{variable.deprecated_for}`"
    return row(f"`{variable.name}`", _escaped(meaning), f"`{variable.default}`" if variable.default else "")


def own_variables() -> list[dict[str, Any]]:
    """The variables of npukit that users may set."""
    rows: list[dict[str, Any]] = load_yaml(Path(__file__).with_name("variables.yaml"))
    return rows


def errors_page() -> str:
    """Every error that `npukit explain` knows."""
    tables = (
        fill("error_family.md", title=title, errors=map(_error, errors_of(family))) for family, title in ERRORS.items()
    )
    return fill("errors.md", families="".join(tables))


def _error(error: KnownError) -> str:
    name = f"<br>{error.name}" if error.name else ""
    return row(f"`{error.code}`{name}", _escaped(error.meaning), _escaped(next(iter(error.remedies), "")))


def _escaped(text: str) -> str:
    return text.replace("<", "&lt;")


def _yes(value: bool) -> str:
    return "yes" if value else "no"
