"""Data sets on the Hugging Face hub and on ModelScope."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from npukit.errors import NpukitError

if TYPE_CHECKING:
    from npukit.llm.data.sources import Table


def hub_rows(table: Table, streaming: bool = False) -> Iterable[dict[str, Any]]:
    """The rows of a hub's data set, downloaded at first use; streaming fetches them as they are needed."""
    try:
        rows: Iterable[dict[str, Any]]
        rows = _modelscope(table, streaming) if table.hub == "modelscope" else _huggingface(table, streaming)
        return rows
    except NpukitError:
        raise
    except Exception as error:  # the hubs' libraries raise whatever their HTTP library raised
        reason = str(error).strip().split("\n")[0] or type(error).__name__
        raise NpukitError(
            f"The data set {table.hub_name} cannot be had from {table.hub} ({reason}): look at the name, the network "
            "(HF_ENDPOINT names a mirror, USE_MODELSCOPE_HUB=1 the other hub), or give a local file."
        ) from error


def _huggingface(table: Table, streaming: bool) -> Any:
    try:
        from datasets import load_dataset
    except ImportError as error:
        raise NpukitError("Data sets of the Hugging Face hub need a package: pip install datasets.") from error
    return load_dataset(table.hub_name, table.subset, split=table.split, streaming=streaming)


def _modelscope(table: Table, streaming: bool) -> Any:
    try:
        from modelscope import MsDataset
    except ImportError as error:
        raise NpukitError("Data sets of ModelScope need a package: pip install modelscope.") from error
    found = MsDataset.load(
        table.hub_name, subset_name=table.subset or "default", split=table.split, use_streaming=streaming
    )
    return found.to_hf_dataset() if hasattr(found, "to_hf_dataset") else found


def fingerprint(table: Table) -> str:
    """What changes when the data set does."""
    rows = hub_rows(table)
    return str(getattr(rows, "_fingerprint", ""))
