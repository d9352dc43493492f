"""Find a model on this machine: a folder, or a name on a hub, which is downloaded first."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from npukit.errors import NpukitError
from npukit.llm.hub import Hub, check_hub
from npukit.packages import require

ADAPTER = "adapter_config.json"
BELOW = "default"  # the folder in an adapter's own where ms-swift keeps adapters that are not PEFT's


def find_model(name: str, revision: str | None = None, hub: str | None = None, weights: bool = True) -> Path:
    """The folder of a model or adapter. A download may leave out the weights.

    >>> find_model("models/qwen2")
    PosixPath('models/qwen2')
    """
    folder = Path(name).expanduser()
    if folder.is_dir():
        if not (folder / "config.json").is_file() and not is_adapter(folder):
            raise NpukitError(f"{folder} is not a model: it has neither config.json nor {ADAPTER}.")
        return folder
    if folder.is_file():
        raise NpukitError(f"{folder} is a file: give the folder that contains it.")
    if folder.is_absolute() or name.startswith((".", "~")) or name.count("/") > 1:
        raise NpukitError(f"There is no folder {folder}.")
    used = _hub(hub)
    check_hub("model", name, used)
    return _from_modelscope(name, revision) if used == "modelscope" else _from_hub(name, revision, weights)


def check_reachable(name: str) -> None:
    """Refuse a name that is not a folder if its hub cannot be reached. Called before the slower import of torch."""
    if not Path(name).expanduser().exists():
        check_hub("model", name, _hub())


def _hub(named: str | None = None) -> Hub:
    wanted = os.environ.get("USE_MODELSCOPE_HUB", "").lower() in ("1", "true")
    return "modelscope" if named == "modelscope" or wanted else "huggingface"


def _from_hub(name: str, revision: str | None, weights: bool) -> Path:
    require("huggingface_hub", extra="use")
    from npukit.llm.download import download

    try:
        return download("model", name, revision, weights)
    except Exception as error:  # no such name, no network, no permission: the libraries have a class for each
        first = str(error).strip().split("\n")[0]
        raise NpukitError(
            f"There is no folder {name}, and it could not be downloaded from the Hugging Face Hub: {first}"
        ) from error


def _from_modelscope(name: str, revision: str | None) -> Path:
    from modelscope import snapshot_download  # type: ignore[import-not-found, import-untyped, unused-ignore]

    return Path(snapshot_download(name, revision=revision))


def read_json(file: Path) -> dict[str, Any]:
    """Read a model's JSON file, such as config.json."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise NpukitError(f"There is no {file}: is {file.parent} complete?") from None
    except (OSError, ValueError) as error:
        raise NpukitError(f"{file} cannot be read: {error}.") from error
    if not isinstance(content, dict):
        raise NpukitError(f"{file} should be a JSON object.")
    return content


def adapter_folder(folder: Path) -> Path:
    """Where the files of an adapter are: in its folder, or in one below."""
    return folder if (folder / ADAPTER).is_file() else folder / BELOW


def is_adapter(folder: Path) -> bool:
    """Whether an adapter is in a folder."""
    return (adapter_folder(folder) / ADAPTER).is_file()


def base_of(adapter: Path) -> str:
    """The name or folder of the model that an adapter was trained on; relative folders are also looked up from it."""
    file = adapter_folder(adapter) / ADAPTER
    name = read_json(file).get("base_model_name_or_path")
    if not isinstance(name, str) or not name:
        raise NpukitError(f"{file} does not name its base model: name the model as well.")
    beside = adapter / name
    return str(beside) if not Path(name).is_dir() and beside.is_dir() else name


def find_parts(model: str, adapters: Sequence[str] = ()) -> tuple[Path, tuple[Path, ...]]:
    """The folders of a model and of its adapters. An adapter's folder may be given as the model.

    >>> find_parts("runs/lora")
    (PosixPath('models/qwen2'), (PosixPath('runs/lora'),))
    """
    folder = find_model(model)
    found = [find_model(adapter) for adapter in adapters]
    if is_adapter(folder) and not (folder / "config.json").is_file():
        found, folder = [folder, *found], find_model(base_of(folder))
    for adapter in found:
        if not is_adapter(adapter):
            raise NpukitError(f"{adapter} is not an adapter: it has no {ADAPTER}.")
    return folder, tuple(found)
