"""A batch: every row once, in order, whatever is wrong with some of them and however often the process is killed."""

from __future__ import annotations

import json
import random
import time
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest

from npukit.errors import NpukitError
from npukit.inference.batch import infer
from npukit.inference.metrics import measure, words
from npukit.llm.config.use import Use
from npukit.llm.data.files import RawRow
from npukit.llm.data.questions import question_of
from npukit.llm.data.row import BadRow, Layout

GREEDY = {"temperature": 0, "max_new_tokens": 12}


def asked(
    model: Path,
    data: Path,
    output: Path,
    sampling: dict[str, Any] = GREEDY,
    rows: int = 256,
    template: str | None = None,
) -> Use:
    return Use(
        model={"path": str(model)},
        chat={"template": template},
        data={"input": [str(data)], "output": output},
        sampling=sampling,
        engine={"max_num_seqs": rows},
    )


def rows_of(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


@pytest.mark.parametrize(
    ("row", "messages", "reference"),
    [
        ({"prompt": "Hi"}, [("user", "Hi")], None),
        ({"query": "Hi", "response": "Yes"}, [("user", "Hi")], "Yes"),
        ({"instruction": "Add", "input": "1 and 2"}, [("user", "Add\n1 and 2")], None),
        ({"instruction": "Add", "output": ""}, [("user", "Add")], None),
        ({"messages": [{"role": "user", "content": "Hi"}]}, [("user", "Hi")], None),
        (
            {"conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Yes"}], "system": "Be."},
            [("system", "Be."), ("user", "Hi")],
            "Yes",
        ),
    ],
)
def test_what_a_row_asks(row: Any, messages: list[tuple[str, str]], reference: str | None) -> None:
    question = question_of(RawRow("rows.jsonl", 1, row), Layout())
    assert [(message["role"], message["content"]) for message in question.messages or []] == messages
    assert question.reference == reference


CALL = {"role": "tool_call", "content": '{"name": "add", "arguments": {"a": 1}}'}
ADD = {"tools": [{"name": "add", "parameters": {}}], "messages": [{"role": "user", "content": "1 + 1?"}, CALL]}


def test_rows_with_tools(tiny_qwen2: Path, tmp_path: Path) -> None:
    result = [{"role": "tool_response", "content": "2"}, {"role": "assistant", "content": "Two."}]
    first = question_of(RawRow("rows.jsonl", 1, ADD), Layout())
    later = question_of(RawRow("rows.jsonl", 1, {**ADD, "messages": [*ADD["messages"], *result]}), Layout())
    assert first.reference == CALL["content"] and first.tools and first.tools[0]["function"]["name"] == "add"
    assert [message["role"] for message in later.messages or []] == ["user", "assistant", "tool"]
    (tmp_path / "rows.jsonl").write_text(json.dumps(ADD) + "\n")
    (tmp_path / "tools.jinja").write_text("{{ tools[0].function.name }}{{ messages[0].content }}")
    for number, template in enumerate((str(tmp_path / "tools.jinja"), None)):  # the tokenizer's own has no tools
        output = tmp_path / f"out-{number}.jsonl"
        done = infer(asked(tiny_qwen2, tmp_path / "rows.jsonl", output, template=template))
        assert done and done.failed == 0
        assert rows_of(output)[0]["tools"][0]["function"]["name"] == "add"


def test_a_row_that_asks_nothing_is_a_bad_one() -> None:
    with pytest.raises(BadRow, match="colour"):
        question_of(RawRow("rows.jsonl", 1, {"colour": "red"}), Layout())


def test_bad_rows_are_told_and_the_others_answered_in_order(tiny_qwen2: Path, tmp_path: Path) -> None:
    data = tmp_path / "rows.jsonl"
    lines = ['{"prompt": "One?"}', '{"prompt": ', '{"prompt": "Two?", "completion": "2"}', '{"text": "The quick"}']
    data.write_text("\n".join([*lines, json.dumps({"prompt": "long " * 5000})]) + "\n")
    done = infer(asked(tiny_qwen2, data, tmp_path / "out.jsonl", rows=2))
    assert done and (done.rows, done.failed) == (5, 2) and done.metrics and done.metrics.pairs == 1
    rows = rows_of(tmp_path / "out.jsonl")
    assert [row["row"] for row in rows] == [1, 2, 3, 4, 5]
    assert "line 2" in rows[1]["error"] and rows[2]["label"] == "2" and rows[3]["text"] == "The quick"
    assert "tokens" in rows[4]["error"] and all(rows[number]["response"] for number in (0, 2, 3))
    with pytest.raises(NpukitError, match="--force"):
        infer(asked(tiny_qwen2, data, tmp_path / "out.jsonl"))


def test_answers_are_those_of_generate(tiny_qwen2: Path, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    data = tmp_path / "rows.csv"
    data.write_text("question,answer\nWho?,Me\nWhat is it?,That\n")
    infer(asked(tiny_qwen2, data, tmp_path / "out.jsonl"))
    tokenizer, model = AutoTokenizer.from_pretrained(tiny_qwen2), AutoModelForCausalLM.from_pretrained(tiny_qwen2)
    for row in rows_of(tmp_path / "out.jsonl"):
        inputs = tokenizer.apply_chat_template(
            row["messages"], add_generation_prompt=True, return_tensors="pt", return_dict=True
        )
        ids = model.generate(**inputs, max_new_tokens=12, do_sample=False)[0, inputs["input_ids"].shape[1] :]
        assert row["response"] == tokenizer.decode(ids, skip_special_tokens=True)


def test_killed_twice_the_output_is_as_undisturbed(tiny_qwen2: Path, tmp_path: Path) -> None:
    data = tmp_path / "rows.jsonl"
    data.write_text("".join(json.dumps({"prompt": f"Number {n}?"}) + "\n" for n in range(20)))
    sampling = {"temperature": 0.9, "max_new_tokens": 40, "seed": 3}
    infer(asked(tiny_qwen2, data, tmp_path / "whole.jsonl", sampling, rows=4))
    task = asked(tiny_qwen2, data, tmp_path / "killed.jsonl", sampling, rows=4)
    part = tmp_path / "killed.jsonl.part"
    pick = random.Random(0)
    for least in (1, 8):
        process = get_context("fork").Process(target=infer, args=(task,))  # where everything is imported already
        process.start()
        while sum(file.read_bytes().count(b"\n") for file in part.glob("rows-*")) < least:
            assert process.is_alive()
            time.sleep(0.01)
        time.sleep(pick.random() / 10)
        process.kill()
        process.join()
        assert not (tmp_path / "killed.jsonl").exists()
    with (next(part.glob("rows-*"))).open("ab") as file:
        file.write(b'{"row": 19, "resp')  # half a line, as a kill may leave it
    done = infer(task)
    assert done and done.resumed >= 8
    assert (tmp_path / "killed.jsonl").read_bytes() == (tmp_path / "whole.jsonl").read_bytes()
    assert not part.exists()


def test_ranks_share_the_rows(tiny_qwen2: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = tmp_path / "rows.jsonl"
    data.write_text("".join(json.dumps({"prompt": f"Number {n}?"}) + "\n" for n in range(7)))
    infer(asked(tiny_qwen2, data, tmp_path / "one.jsonl"))
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    for rank in ("0", "1"):
        monkeypatch.setenv("LOCAL_RANK", rank)
        done = infer(asked(tiny_qwen2, data, tmp_path / "two.jsonl"))
        assert (done is None) == (rank == "0"), "the last one writes the output"
    assert (tmp_path / "two.jsonl").read_bytes() == (tmp_path / "one.jsonl").read_bytes()


def test_a_run_with_other_settings_is_not_gone_on_with(tiny_qwen2: Path, tmp_path: Path) -> None:
    data = tmp_path / "rows.jsonl"
    data.write_text('{"prompt": "Hi"}\n')
    part = tmp_path / "out.jsonl.part"
    part.mkdir()
    (part / "settings.json").write_text(json.dumps({"seed": 7}))
    with pytest.raises(NpukitError, match="seed"):
        infer(asked(tiny_qwen2, data, tmp_path / "out.jsonl"))


def test_metrics() -> None:
    assert words("NPU 很快!") == ["npu", "很", "快"]
    same = measure([("The cat sat on the mat", "The cat sat on the mat")])
    assert same.accuracy == 100
    if same.rouge_1 is not None and same.bleu_4 is not None:
        assert same.rouge_1 == same.rouge_l == pytest.approx(100) and same.bleu_4 == pytest.approx(100)
        half = measure([("我 喜欢 猫", "我 喜欢 狗")])
        assert half.rouge_1 is not None and 50 < half.rouge_1 < 100 and half.accuracy == 0
