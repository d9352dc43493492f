"""The commands and files of other tools' guides for NPUs, as they stand there but for the model and the data.

`python -m benchmarks guides` runs all of them; here are those that differ most.
"""

from __future__ import annotations

import json
from pathlib import Path

from safetensors.torch import load_file
from tests.forks import Forks

# From LLaMA-Factory's guide for NPUs.
LLAMA_FACTORY = (Path(__file__).parents[1] / "data" / "qwen1_5_lora_sft_ds.yaml").read_text()
# From ms-swift's.
SWIFT = (
    "--num_train_epochs 5 --output_dir output --learning_rate 1e-4 --gradient_accumulation_steps 16 "
    "--save_steps 100 --eval_steps 100"
)
ROWS = [{"instruction": f"What is {number} plus one?", "output": f"It is {number + 1}."} for number in range(20)]


def test_llama_factorys_yaml(forks: Forks, tiny_qwen2: Path, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    for name, rows in {"identity": ROWS[:4], "alpaca_en_demo": ROWS[4:]}.items():
        (data / f"{name}.json").write_text(json.dumps(rows))
    names = {name: {"file_name": f"{name}.json"} for name in ("identity", "alpaca_en_demo")}
    (data / "dataset_info.json").write_text(json.dumps(names))
    (tmp_path / "qwen1_5_lora_sft_ds.yaml").write_text(LLAMA_FACTORY.replace("qwen/Qwen1.5-7B", str(tiny_qwen2)))
    command = ["npukit", "train", "qwen1_5_lora_sft_ds.yaml", "--device", "sim"]
    log = forks.run(*command, cwd=tmp_path, ASCEND_RT_VISIBLE_DEVICES="0")
    assert "simulated" in log and "27 of 27 (3.00 epochs)" in log
    output = tmp_path / "saves/Qwen1.5-7B/lora/sft"
    trained = load_file(output / "adapter_model.safetensors")
    assert {name.split(".")[-3] for name in trained} == {"q_proj", "v_proj"}
    assert (output / "loss.png").stat().st_size > 1000
    assert json.loads((output / "summary.json").read_text())["evaluation"]["eval_loss"] > 0


def test_ms_swifts_command_for_two_cards(forks: Forks, tiny_qwen2: Path, tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    flags = f"--model {tiny_qwen2} --dataset rows.jsonl {SWIFT} --train_type full --deepspeed zero3"
    command = ["npukit", "sft", *flags.split(), "--device", "sim"]
    log = forks.run(*command, cwd=tmp_path, ASCEND_RT_VISIBLE_DEVICES="0,1", NPROC_PER_NODE="2")
    assert "2 x simulated Ascend910B3" in log
    (output,) = (tmp_path / "output").iterdir()
    trained, before = load_file(output / "model.safetensors"), load_file(tiny_qwen2 / "model.safetensors")
    assert {name: value.shape for name, value in trained.items()} == {name: before[name].shape for name in trained}
    assert any((trained[name] != before[name]).any() for name in trained)
