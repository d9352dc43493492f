from __future__ import annotations

import re
import subprocess

import pytest

from npukit.machine.npu_smi import parse_info
from npukit.simulate import environment


def ask(*command: str, devices: int = 1, card: str = "910B3") -> str:
    made = environment(devices=devices, card=card)
    result = subprocess.run(command, env=made, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_npu_smi_shows_every_card_in_the_real_tables_form() -> None:
    table = ask("npu-smi", "info", devices=8)
    assert "(simulated)" in table.splitlines()[1]
    assert {len(line) for line in table.splitlines()} == {98}
    # How tools read it: an NPU row, then a chip row with the bus and the memory.
    names = re.findall(r"^\| (\d+) +(\S+) +\| OK +\|", table, re.M)
    assert names == [(str(number), "910B3") for number in range(8)]
    assert re.findall(r"[0-9A-F]{4}:[0-9A-F]{2}:00\.0 +\| \d+ +\d+ +/ \d+ +\d+ +/ (\d+)", table) == ["65536"] * 8


def test_npu_smi_shows_a_card_that_dropped_out_and_one_with_memory_errors() -> None:
    made = environment(devices=3, faults=["lost=1", "ecc=2"])
    output = subprocess.run(["npu-smi", "info"], env=made, capture_output=True, text=True).stdout
    assert [chip.health for chip in parse_info(output).chips] == ["OK", "Critical", "Alarm"], "as doctor reads it"
    command = ["npu-smi", "info", "-t", "ecc", "-i", "2"]
    output = subprocess.run(command, env=made, capture_output=True, text=True).stdout
    assert re.search(r"Double Bit Error Count +: 1", output)


def test_npu_smi_shows_two_chips_to_a_package() -> None:
    table = ask("npu-smi", "info", devices=4, card="910_9391")
    chips = re.findall(r"^\| (\d+) +(\d+) +\| [0-9A-F]{4}:", table, re.M)
    assert chips == [("0", "0"), ("1", "1"), ("0", "2"), ("1", "3")]


@pytest.mark.parametrize(
    ("card", "name", "row"),
    [
        ("910B3", "NPU0", ["X", "HCCS", "HCCS", "HCCS"]),
        ("910_9391", "Phy-ID0", ["X", "SIO", "HCCS_SW", "HCCS_SW"]),
        ("310P3", "NPU0", ["X", "PHB", "PHB", "PHB"]),
    ],
)
def test_topology_follows_the_card(card: str, name: str, row: list[str]) -> None:
    lines = ask("npu-smi", "info", "-t", "topo", devices=4, card=card).splitlines()
    assert lines[0].split()[0] == name and lines[0].endswith("CPU Affinity")
    assert lines[1].split()[:-1] == [name, *row]


def test_board_list_mapping_and_version() -> None:
    board = ask("npu-smi", "info", "-t", "board", "-i", "1", devices=2)
    assert re.search(r"Compatibility +: OK", board) and re.search(r"NPU ID +: 1", board)
    assert re.search(r"Total Count +: 2", ask("npu-smi", "info", "-l", devices=2))
    assert re.search(r"^\t1 +0 +1 +Ascend 910B3", ask("npu-smi", "info", "-m", devices=2), re.M)
    assert "simulated" in ask("npu-smi", "-v")


def test_npu_list_names_the_device_files() -> None:
    rows = [line.split("|")[1:-1] for line in ask("npu-list", devices=2).splitlines() if line.startswith("|")]
    assert [[cell.strip() for cell in row] for row in rows[1:]] == [
        ["/dev/davinci0", "None", "None"],
        ["/dev/davinci1", "None", "None"],
    ]
