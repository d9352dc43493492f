"""Names of data sets: files, folders, dataset_info.json, hubs."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from npukit.errors import NpukitError
from npukit.llm.config.options import DataOptions, Source
from npukit.llm.data.check import find_layout, row_of
from npukit.llm.data.sources import Table, find_table
from npukit.llm.tasks.task import named

QUESTION, ANSWER = {"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("USE_MODELSCOPE_HUB", raising=False)
    monkeypatch.setenv("HF_DATASETS_OFFLINE", "1")
    (tmp_path / "data").mkdir()
    return tmp_path


def find(path: str, hub: Any = None, **source: Any) -> Table:
    options = Source(path=path, **source)
    return find_table(options, DataOptions(train=(options,)), hub)


def first_row(table: Table) -> Any:
    layout = find_layout(table.records(), table, named("sft"))
    return row_of(next(table.records()), layout, named("sft"))


INFO: dict[str, Any] = {
    "renamed": {"file_name": "a.json", "columns": {"prompt": "q", "query": "", "response": "r", "history": "h"}},
    "tagged": {
        "file_name": "b.jsonl",
        "formatting": "sharegpt",
        "columns": {"messages": "talk"},
        "tags": {"role_tag": "who", "content_tag": "what", "user_tag": "U", "assistant_tag": "A"},
    },
    "openai": {"file_name": "c.json", "formatting": "openai", "columns": {"messages": "messages"}},
    "hub": {"hf_hub_url": "owner/name", "ms_hub_url": "Owner/Name", "subset": "en", "split": "test", "num_samples": 7},
    "depth": {"file_name": "a.json", "columns": {"depth": "pictures"}},
    "kto": {"file_name": "a.json", "formatting": "kto"},
    "script": {"script_url": "x.py"},
}


@pytest.fixture
def info(here: Path) -> None:
    data = here / "data"
    (data / "dataset_info.json").write_text(json.dumps(INFO))
    (data / "a.json").write_text(json.dumps([{"q": "Hi", "r": "Hello", "h": []}]))
    (data / "b.jsonl").write_text(json.dumps({"talk": [{"who": "U", "what": "Hi"}, {"who": "A", "what": "Hello"}]}))
    (data / "c.json").write_text(json.dumps([{"messages": [QUESTION, ANSWER]}]))


@pytest.mark.usefixtures("info")
@pytest.mark.parametrize("name", ["renamed", "tagged", "openai"])
def test_entries_of_dataset_info(name: str) -> None:
    assert first_row(find(name)) == [QUESTION, ANSWER]


def _downloaded(folder: Path) -> None:
    (folder / ".cache/huggingface/download").mkdir(parents=True)


def _cloned(folder: Path) -> None:
    (folder / ".git").mkdir()
    (folder / ".git/config").write_text('[remote "origin"]\n\turl = https://huggingface.co/datasets/owner/name\n')


@pytest.mark.parametrize("name", ["../secret.json", "{here}/secret.json", "link.json"])
@pytest.mark.parametrize("arrive", [_downloaded, _cloned])
def test_what_came_from_a_hub_names_no_file_elsewhere(here: Path, arrive: Callable[[Path], None], name: str) -> None:
    (here / "secret.json").write_text(json.dumps([{"instruction": "Hi", "output": "Hello"}]))
    (here / "data/link.json").symlink_to(here / "secret.json")
    entry = {"x": {"file_name": name.format(here=here)}}
    (here / "data/dataset_info.json").write_text(json.dumps(entry))
    assert find("x").files, "the user's own may"
    arrive(here / "data")
    with pytest.raises(NpukitError, match="came from a hub"):
        find("x")


def test_links_inside_a_hub_s_cache_are_followed(here: Path) -> None:
    snapshot, blobs = here / "datasets--owner--name/snapshots/1", here / "datasets--owner--name/blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    (blobs / "1").write_text(json.dumps({"x": {"file_name": "a.json"}}))
    (blobs / "2").write_text(json.dumps([{"instruction": "Hi", "output": "Hello"}]))
    (snapshot / "dataset_info.json").symlink_to("../../blobs/1")
    (snapshot / "a.json").symlink_to("../../blobs/2")
    table = find_table(Source(path="x"), DataOptions(train=(Source(path="x"),), folder=snapshot))
    assert table.files == (snapshot / "a.json",)


@pytest.mark.usefixtures("info")
def test_an_entry_may_be_on_either_hub() -> None:
    table = find("hub#5")
    assert (table.hub, table.hub_name, table.subset, table.split) == ("huggingface", "owner/name", "en", "test")
    assert table.limit == 5 and find("hub").limit == 7
    assert find("hub", "modelscope").hub_name == "Owner/Name"


@pytest.mark.usefixtures("info")
@pytest.mark.parametrize(
    ("name", "expected"), [("depth", "'depth' is not supported"), ("kto", "'kto'"), ("script", "no file_name")]
)
def test_what_an_entry_wants_in_vain_is_named(name: str, expected: str) -> None:
    with pytest.raises(NpukitError, match=expected):
        find(name)


def test_files_are_found_here_and_in_the_folder(here: Path) -> None:
    (here / "data/a.json").write_text("[1]")
    (here / "b.json").write_text("[1]")
    assert find("a.json").files == (Path("data/a.json"),)
    assert find("b.json").files == (Path("b.json"),)


def test_a_folder_is_its_files(here: Path) -> None:
    folder = here / "set"
    for name in ("README.md", "b.json", "a.jsonl", ".git/x.json", "deep/c.csv"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("x")
    names = [str(file.relative_to(folder)) for file in find(str(folder)).files]
    assert names == ["a.jsonl", "b.json", "deep/c.csv"]
    for name in ("train-00000.parquet", "test-00000.parquet"):
        (folder / name).write_text("x")
    assert [file.name for file in find(str(folder), split="test").files] == ["test-00000.parquet"]


def test_names_of_hubs(monkeypatch: pytest.MonkeyPatch) -> None:
    assert find("tatsu-lab/alpaca").hub == "huggingface" and find("imdb").hub == "huggingface"
    monkeypatch.setenv("USE_MODELSCOPE_HUB", "1")
    assert find("AI-ModelScope/alpaca-gpt4-data-zh#500").hub == "modelscope"
    assert find("AI-ModelScope/alpaca-gpt4-data-zh#500").limit == 500
    with pytest.raises(NpukitError, match="no such file"):
        find("data/missing")


def test_rows_of_the_hugging_face_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def load_dataset(*names: Any, **options: Any) -> list[dict[str, str]]:
        asked.append((names, options))
        return [{"instruction": "Hi", "output": "Hello"}]

    monkeypatch.setattr("datasets.load_dataset", load_dataset)
    table = find("owner/name", subset="en", split="test")
    assert first_row(table) == [QUESTION, ANSWER]
    assert asked == [(("owner/name", "en"), {"split": "test", "streaming": False})], "it is loaded once"
    assert next(table.records()).place == "owner/name, row 1"


def test_rows_of_modelscope(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    class MsDataset:
        @staticmethod
        def load(name: str, **options: Any) -> list[dict[str, str]]:
            asked.append((name, options))
            return [{"instruction": "Hi", "output": "Hello"}]

    table = find("owner/name", "modelscope")
    monkeypatch.setitem(sys.modules, "modelscope", None)
    with pytest.raises(NpukitError, match="pip install modelscope"):
        next(table.records())
    monkeypatch.setitem(sys.modules, "modelscope", SimpleNamespace(MsDataset=MsDataset))
    assert first_row(table) == [QUESTION, ANSWER]
    assert asked[0] == ("owner/name", {"subset_name": None, "split": "train", "use_streaming": False})


def test_a_hub_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    def load_dataset(*_: Any, **__: Any) -> Any:
        raise ConnectionError("Couldn't reach the hub\nwith many more lines")

    monkeypatch.setattr("datasets.load_dataset", load_dataset)
    with pytest.raises(NpukitError, match=r"owner/far could not be loaded from huggingface \(Couldn't reach the hub\)"):
        next(find("owner/far").records())


def test_without_a_network_the_hubs_cache_is_asked_at_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def no_address(*_: Any) -> Any:
        raise OSError("Name or service not known")

    monkeypatch.delenv("HF_DATASETS_OFFLINE")
    monkeypatch.setenv("HF_HUB_OFFLINE", "")  # so that it is put back
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path))
    (tmp_path / "owner___kept").mkdir()
    monkeypatch.setattr("urllib.request.getproxies", dict)
    monkeypatch.setattr("socket.create_connection", no_address)
    monkeypatch.setattr("datasets.load_dataset", lambda *_, **__: [{"offline": os.environ["HF_DATASETS_OFFLINE"]}])
    assert next(find("owner/kept").records()).value == {"offline": "1"}
