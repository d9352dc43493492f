"""Data sets on the Hugging Face Hub and on ModelScope."""

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
    """The rows of a hub's data set, downloaded on first use or, if streamed, fetched as they are needed. Several
    subsets, joined by +, follow one another.
    """
    load = _from_modelscope if hub == "modelscope" else _from_huggingface
    with _errors_as_sentence(name, hub):
        parts = [_undecoded(load(name, part, split, streaming)) for part in (subset.split("+") if subset else [None])]
        rows: Iterable[dict[str, Any]] = parts[0] if len(parts) == 1 else _concatenate(parts)
        return rows


def _concatenate(parts: list[Any]) -> Any:
    from datasets import concatenate_datasets

    return concatenate_datasets(parts)


def archive_on_hub(hub: Hub, name: str, archive: str) -> Path:
    """A file from a data set's repository, downloaded on first use."""
    check_hub("dataset", name, hub)
    with _errors_as_sentence(name, hub):
        if hub == "modelscope":
            require("modelscope")
            from modelscope import dataset_file_download

            return Path(dataset_file_download(name, archive))
        require("huggingface_hub", extra="train")
        from huggingface_hub import hf_hub_download

        return Path(hf_hub_download(name, archive, repo_type="dataset"))


@contextmanager
def _errors_as_sentence(name: str, hub: Hub) -> Iterator[None]:
    """Turn errors of the hubs' libraries, which are those of their HTTP libraries, into one sentence."""
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
    """Rows with images as bytes and paths, which are decoded when a batch needs them."""
    for name, feature in (getattr(rows, "features", None) or {}).items():
        inner = getattr(feature, "feature", feature)
        if type(inner).__name__ == "Image":
            from datasets import Image, List

            kept = Image(decode=False)
            rows = rows.cast_column(name, kept if inner is feature else List(kept))
    return rows


REMOTE = "REMOTE:"


def local_folder(folder: Path) -> Path:
    """The folder itself; one on the Hugging Face Hub (REMOTE:owner/name) is downloaded first."""
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
