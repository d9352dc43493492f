"""A configuration with a mistake in it: a sentence with its line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from npukit.errors import NpukitError
from npukit.llm.config.given import Mistakes
from npukit.llm.config.read import read

GOOD = (Path(__file__).parents[2] / "data" / "good.yaml").read_text()


def with_line(old: str, new: str) -> str:
    assert old in GOOD
    return GOOD.replace(old, new)


BROKEN = {
    "unknown key": (
        with_line("learning_rate", "learning_rte"),
        ["x.yaml:7: ", "training.learning_rte", "did you mean learning_rate?"],
    ),
    "key on the wrong level": (GOOD + "rank: 16\n", ["x.yaml:8: ", "it belongs under tuning, as tuning.rank"]),
    "usual name": (with_line("learning_rate", "lr"), ["x.yaml:7: ", "training.lr: did you mean learning_rate?"]),
    "usual name of another group": (
        with_line("epochs: 2", "max_len: 8"),
        ["x.yaml:6: ", "training.max_len: did you mean data.cutoff?"],
    ),
    "nothing like it": (with_line("epochs: 2", "zzz: 8"), ["x.yaml:6: ", "`npukit train --explain` lists"]),
    "key of another tool": (GOOD + "cutoff_len: 16\n", ["x.yaml:8: ", "it is LLaMA-Factory's name of data.cutoff"]),
    "key of a data set": (
        with_line("train: rows.jsonl", "train:\n  - path: rows.jsonl\n    formt: alpaca"),
        ["x.yaml:6: ", "data.train[0].formt", "did you mean format?"],
    ),
    "misspelt group": (with_line("model:", "modle:"), ["x.yaml:1: there is no option modle: did you mean model?"]),
    "key beside its group": (
        GOOD + "learning_rate: 1e-4\n",
        ["x.yaml:8: ", "it belongs under training, as training.learning_rate"],
    ),
    "text for a number": (
        with_line("1e-4", "fast"),
        ["x.yaml:7: training.learning_rate must be a number above 0, not 'fast'."],
    ),
    "output below a file": (
        with_line("epochs: 2", "output: rows.jsonl/x"),
        ["x.yaml:6: ", "rows.jsonl is a file: name a folder."],
    ),
    "a part for a whole": (
        with_line("epochs: 2", "batch_size: 2.5"),
        ["x.yaml:6: training.batch_size must be a whole number above 0, not 2.5."],
    ),
    "true for a number": (
        with_line("epochs: 2", "batch_size: true"),
        ["x.yaml:6: ", "must be a whole number above 0, not true."],
    ),
    "text for true": (
        GOOD + "  plot: sometimes\n",
        ["x.yaml:8: training.plot must be true or false, not 'sometimes'."],
    ),
    "no for a text": (with_line("path: models/tiny", "path: no"), ["x.yaml:2: model.path must be text, not false."]),
    "below the range": (
        with_line("epochs: 2", "epochs: -1"),
        ["x.yaml:6: training.epochs must be a number above 0, not -1."],
    ),
    "above the range": (
        GOOD + "tuning: {dropout: 1.5}\n",
        ["x.yaml:8: tuning.dropout must be a number from 0 to 1, not 1.5."],
    ),
    "wrong choice": (
        GOOD + "tuning: {method: lroa}\n",
        ["x.yaml:8: tuning.method must be one of lora, full, freeze, ", "not 'lroa': did you mean lora?"],
    ),
    "wrong number of parts": (GOOD + "  betas: [0.9]\n", ["x.yaml:8: training.betas must be a list of 2"]),
    "duplicate key": (GOOD + "  epochs: 3\n", ["x.yaml:8: epochs was already given in line 6: remove one of them."]),
    "tab": (with_line("  epochs", "\tepochs"), ["x.yaml:6: ", " tab"]),
    "no colon": (with_line("epochs: 2", "epochs 2"), ["x.yaml:", "there is no colon in 'epochs 2'"]),
    "no space": ("lr:0.1\nmodel: x\n", ["x.yaml:1", "there is no space after the colon"]),
    "not YAML": (GOOD + "  output: {a: [b}\n", ["x.yaml:8: this is not YAML"]),
    "list for a group": (
        "model: [a, b]\ndata: {train: rows.jsonl}\n",
        ["x.yaml:1: model must be a group of keys (path, ", "not [a, b]."],
    ),
    "text for a group": (
        GOOD + "tuning: lora\n",
        ["x.yaml:8: tuning must be a group of keys (method, ", "not 'lora'."],
    ),
    "list for the file": ("- model\n- data\n", ["x.yaml:1: ", "`key: value`", "a list"]),
    "empty file": ("# nothing\n", ["x.yaml is empty"]),
    "missing group": ("model: {path: models/tiny}\n", ["x.yaml: data is missing"]),
    "missing key": (
        "model: {path: models/tiny}\ndata: {cutoff: 8}\n",
        ["x.yaml:2: data.train is missing: data sets to train on"],
    ),
    "no data": (with_line("rows.jsonl", "[]"), ["x.yaml:4: data.train must be a list of data sets"]),
    "stream without end": (
        with_line("rows.jsonl", "rows.jsonl\n  streaming: true"),
        ["x.yaml:5: ", "set training.max_steps"],
    ),
    "pack shorter than rows": (
        with_line("rows.jsonl", "rows.jsonl\n  pack_length: 100"),
        ["x.yaml:5: rows of up to 2048 tokens (data.cutoff) do not fit into 100"],
    ),
    "option without effect": (
        GOOD + "tuning: {method: full, rank: 16}\n",
        ["x.yaml:8: tuning.rank has no effect", "tuning.method is full"],
    ),
    "nothing to evaluate on": (
        GOOD + "  eval_every: 10\n",
        ["x.yaml:8: ", "set data.validation"],
    ),
    "new weights with an adapter": (
        with_line("models/tiny", "models/tiny\n  from_config: true"),
        ["x.yaml:3: new weights", "tuning.method"],
    ),
    "unknown preset": (GOOD + "  parallel: zero4\n", ["x.yaml:8: there is no DeepSpeed file zero4: did you mean zero"]),
    "broken DeepSpeed file": (GOOD + "  parallel: ds.json\n", ["x.yaml:8: ds.json", "DeepSpeed"]),
    "unknown way to resume": (GOOD + "  resume: atuo\n", ["x.yaml:8: there is no checkpoint atuo: did you mean auto?"]),
    "no such model": (
        with_line("models/tiny", "models/tinny"),
        ["x.yaml:2: there is no folder models/tinny: did you mean models/tiny?"],
    ),
    "no model in the folder": (with_line("models/tiny", "./empty"), ["x.yaml:2: empty has no config.json"]),
    "folder above the model": (
        with_line("models/tiny", "./models"),
        ["x.yaml:2: models has no config.json: did you mean models/tiny?"],
    ),
    "no such file": (with_line("rows.jsonl", "row.jsonl"), ["x.yaml:4: row.jsonl", "did you mean rows.jsonl?"]),
    "no such template": (with_line("rows.jsonl", "rows.jsonl\n  template: qwn"), ["x.yaml:5: ", "did you mean qwen?"]),
    "no such module": (
        GOOD + "tuning: {targets: [q_prj, v_proj]}\n",
        ["x.yaml:8: the model has no linear module q_prj: did you mean q_proj?"],
    ),
    "no space after a colon": (
        "model:\n  path:models/tiny\ndata: {train: rows.jsonl}\n",
        ["x.yaml:1: model must be a group of keys", "space after the colon"],
    ),
    "steps in the wrong order": (
        GOOD + "  profile: {steps: [5, 3]}\n",
        ["x.yaml:8: training.profile", "the first step comes after the last"],
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_mistake_is_a_sentence_with_its_line(case: str, folder: Path) -> None:
    text, said = BROKEN[case]
    (folder / "x.yaml").write_text(text)
    with pytest.raises(NpukitError) as raised:
        read(Path("x.yaml"), [], {})
    sentences = str(raised.value)
    assert all(each in sentences for each in said), sentences
    assert len(raised.value.mistakes if isinstance(raised.value, Mistakes) else [0]) == 1, sentences
    assert len(sentences.splitlines()) <= 2


def test_a_flat_file_of_our_own_is_not_taken_for_another_tools(folder: Path) -> None:
    (folder / "x.yaml").write_text("lr: 1e-4\nepochs: 2\npath: models/tiny\nlearning_rate: 1e-4\n")
    with pytest.raises(Mistakes) as raised:
        read(Path("x.yaml"), [], {})
    sentences = str(raised.value)
    assert "training.learning_rate" in sentences and "training.epochs" in sentences and "model.path" in sentences
    assert "LLaMA-Factory" not in sentences and "ms-swift" not in sentences


def test_what_the_command_line_overrides_is_a_note_and_one_logger_is_a_list(folder: Path) -> None:
    (folder / "x.yaml").write_text(GOOD + "tuning: {rank: 4}\n")
    reading = read(Path("x.yaml"), ["tuning.method=full", "training.loggers=wandb"], {})
    assert reading.config.training.loggers == ("wandb",)
    assert len(reading.notes) == 1 and "tuning.rank" in reading.notes[0]


def test_all_mistakes_are_told_at_once_in_their_order(folder: Path) -> None:
    (folder / "x.yaml").write_text(
        "model: {pth: models/nowhere}\ndata: {train: nowhere.jsonl, template: qwn}\n"
        "training:\n  batch_size: 0\n  max_step: 5\n  precision: bf17\n"
    )
    with pytest.raises(Mistakes) as raised:
        read(Path("x.yaml"), ["--training.plott", "no"], {})
    lines = str(raised.value).splitlines()
    assert lines[0] == "8 mistakes:"
    places = [line.strip().split(": ")[0] for line in lines[1:]]
    assert places == ["command line", *(f"x.yaml:{line}" for line in (1, 1, 2, 2, 4, 5, 6))]


def test_weights_that_were_not_downloaded_to_their_end(folder: Path) -> None:
    tiny = folder / "models" / "tiny"
    header = b'{"layers.0.up.weight": {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]}}'
    (tiny / "model-1.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(12))
    (tiny / "model-2.safetensors").write_text("version https://git-lfs.github.com/spec/v1")
    index = {"weight_map": {"a": "model-1.safetensors", "b": "model-3.safetensors"}}
    (tiny / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "x.yaml").write_text(GOOD)
    with pytest.raises(Mistakes) as raised:
        read(Path("x.yaml"), [], {})
    cut, pointer, missing = (str(each) for each in raised.value.mistakes)
    assert "x.yaml:2: models/tiny/model-1.safetensors has 102 of 106 bytes" in cut
    assert "model-2.safetensors" in pointer
    assert "models/tiny lacks model-3.safetensors: download it." in missing
