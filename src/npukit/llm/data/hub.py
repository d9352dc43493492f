"""Data sets on the Hugging Face hub and on ModelScope."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from npukit.errors import NpukitError
from npukit.llm.hub import Hub, check_hub
from npukit.packages import require


def hub_rows(hub: Hub, name: str, subset: str | None, split: str, streaming: bool = False) -> Iterable[dict[str, Any]]:
    """The rows of a hub's data set, downloaded at first use, or fetched as they are needed if it is streamed; of
    several subsets, joined by +, one after the other.
    """
    load = _from_modelscope if hub == "modelscope" else _from_huggingface
    with _told(name, hub):
        parts = [_undecoded(load(name, part, split, streaming)) for part in (subset.split("+") if subset else [None])]
        rows: Iterable[dict[str, Any]] = parts[0] if len(parts) == 1 else _joined(parts)
        return rows


def _joined(parts: list[Any]) -> Any:
    from datasets import concatenate_datasets

    return concatenate_datasets(parts)


def archive_on_hub(hub: Hub, name: str, archive: str) -> Path:
    """A file of a data set's repository, downloaded at first use."""
    check_hub("dataset", name, hub)
    with _told(name, hub):
        if hub == "modelscope":
            require("modelscope")
            from modelscope import dataset_file_download

            return Path(dataset_file_download(name, archive))
        require("huggingface_hub", extra="train")
        from huggingface_hub import hf_hub_download

        return Path(hf_hub_download(name, archive, repo_type="dataset"))


@contextmanager
def _told(name: str, hub: Hub) -> Iterator[None]:
    """Turn what the hubs' libraries raise, which is whatever their HTTP library raised, into one sentence."""
    try:
        yield
    except NpukitError:
        raise
    except Exception as error:
        reason = str(error).strip().split("\n")[0] or type(error).__name__
        raise NpukitError(
            f"The data set {name} could not be loaded from {hub} ({reason}): check the name and the network "
            "(HF_ENDPOINT names a mirror, USE_MODELSCOPE_HUB=1 the other hub), or give a local file."
        ) from error


def _undecoded(rows: Any) -> Any:
    """Rows whose images are bytes and paths; they are decoded when a batch needs them."""
    for name, feature in (getattr(rows, "features", None) or {}).items():
        inner = getattr(feature, "feature", feature)
        if type(inner).__name__ == "Image":
            from datasets import Image, List

            kept = Image(decode=False)
            rows = rows.cast_column(name, kept if inner is feature else List(kept))
    return rows


REMOTE = "REMOTE:"


def local_folder(folder: Path) -> Path:
    """The folder itself; one that lies on the Hugging Face Hub (REMOTE:owner/name) is downloaded first."""
    if not str(folder).startswith(REMOTE):
        return folder
    name = str(folder).removeprefix(REMOTE)
    check_hub("dataset", name, "huggingface")
    require("huggingface_hub", extra="train")
    from npukit.llm.download import download

    try:
        return download("dataset", name)
    except Exception as error:
        reason = str(error).strip().split("\n")[0]
        raise NpukitError(f"data.folder: {name} could not be downloaded ({reason}).") from error


@cache
def _from_huggingface(name: str, subset: str | None, split: str, streaming: bool) -> Any:
    check_hub("dataset", name, "huggingface")
    require("datasets", extra="train")
    from datasets import load_dataset

    return load_dataset(name, subset, split=split, streaming=streaming)


@cache
def _from_modelscope(name: str, subset: str | None, split: str, streaming: bool) -> Any:
    check_hub("dataset", name, "modelscope")
    require("modelscope")
    from modelscope import MsDataset

    dataset = MsDataset.load(name, subset_name=subset, split=split, use_streaming=streaming)
    return dataset.to_hf_dataset() if hasattr(dataset, "to_hf_dataset") else dataset
