from __future__ import annotations

import random
import re
import runpy
from pathlib import Path

import pytest

from npukit.machine.npu_smi import parse_fields, parse_info, parse_topology
from npukit.simulate.machine import npu_smi

NAMES = runpy.run_path(str(Path(__file__).with_name("machines.py")))

# Seen on an A2 server with driver 24.1 (three of its eight cards).
SEEN = """\
+------------------------------------------------------------------------------------------------+
| npu-smi 24.1.rc1.b030            Version: 24.1.rc1.b030                                        |
+---------------------------+---------------+----------------------------------------------------+
| NPU   Name                | Health        | Power(W)    Temp(C)           Hugepages-Usage(page)|
| Chip                      | Bus-Id        | AICore(%)   Memory-Usage(MB)  HBM-Usage(MB)        |
+===========================+===============+====================================================+
| 0     910B3               | OK            | 101.8       43                0    / 0             |
| 0                         | 0000:C1:00.0  | 0           0    / 0          3318 / 65536         |
+===========================+===============+====================================================+
| 1     910B3               | OK            | 92.0        39                0    / 0             |
| 0                         | 0000:C2:00.0  | 0           0    / 0          3314 / 65536         |
+===========================+===============+====================================================+
| 7     910B3               | OK            | 98.2        44                0    / 0             |
| 0                         | 0000:42:00.0  | 0           0    / 0          3315 / 65536         |
+===========================+===============+====================================================+
"""
LINKS_SEEN = """\
       NPU0       NPU1       NPU2       CPU Affinity
NPU0       X          HCCS       HCCS       144-167
NPU1       HCCS       X          HCCS       144-167
NPU2       HCCS       HCCS       X          96-119,200

Legend:

  X    = Self
  SYS  = Path traversing PCIe and NUMA nodes.
"""


def test_the_table_of_an_a2_server() -> None:
    info = parse_info(SEEN)
    assert info.version == "24.1.rc1.b030"
    assert [(chip.npu, chip.name, chip.health, chip.temperature_c) for chip in info.chips] == [
        (0, "910B3", "OK", 43),
        (1, "910B3", "OK", 39),
        (7, "910B3", "OK", 44),
    ]
    first = info.chips[0]
    assert (first.bus, first.power_w, first.memory_used_mib, first.memory_total_mib) == (
        "0000:C1:00.0",
        101.8,
        3318,
        65536,
    )
    assert info.processes == ()


def test_glued_values_and_processes() -> None:
    process = "| 3       0                 | 40911         | python3.11               | 56012                   |"
    chips = [("910B3", "Warning", "59356/ 65536")] * 4
    info = parse_info(NAMES["smi_info"](chips, process))
    assert (info.chips[3].memory_used_mib, info.chips[3].memory_total_mib) == (59356, 65536)
    assert info.chips[3].health == "Warning"
    (user,) = info.processes
    assert (user.npu, user.chip, user.pid, user.name, user.memory_mib) == (3, 0, 40911, "python3.11", 56012)


def test_two_chips_an_npu_have_their_own_device_numbers() -> None:
    info = parse_info(NAMES["smi_info"]([("Ascend910", "OK", "")] * 4, per_npu=2))
    assert [(chip.npu, chip.chip, chip.device) for chip in info.chips] == [(0, 0, 0), (0, 1, 1), (1, 0, 2), (1, 1, 3)]


def test_unknown_values_stay_unknown() -> None:
    info = parse_info("| 0 310P3 | NA | NA  - 0/0 |\n| 0 | 0000:01:00.0 | NA  1200/ 21527 |\n")
    (chip,) = info.chips
    assert (chip.power_w, chip.temperature_c, chip.cores_percent) == (None, None, None)
    assert (chip.memory_used_mib, chip.memory_total_mib) == (1200, 21527)


def test_links() -> None:
    topology = parse_topology(LINKS_SEEN)
    assert topology.names == ("NPU0", "NPU1", "NPU2")
    assert topology.links[1] == ("HCCS", "X", "HCCS")
    assert topology.cpus == ("144-167", "144-167", "96-119,200")
    assert topology.kinds == {"HCCS"}


def test_fields() -> None:
    assert parse_fields("\tSoftware Version   : 25.5.0\n\tPCIe Bus Info : 0000:C1:00.0\n : \nnothing\n") == {
        "Software Version": "25.5.0",
        "PCIe Bus Info": "0000:C1:00.0",
    }


@pytest.mark.parametrize(
    ("card", "name", "kinds"), [("910B3", "910B3", {"HCCS"}), ("910_9391", "Ascend910", {"SIO", "HCCS_SW"})]
)
def test_the_simulated_npu_smi(card: str, name: str, kinds: set[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NPUKIT_SIM_DEVICES", "4")
    monkeypatch.setenv("NPUKIT_SIM_CARD", card)
    info = parse_info(npu_smi.info())
    assert [(chip.name, chip.health, chip.memory_total_mib) for chip in info.chips] == [(name, "OK", 65536)] * 4
    assert parse_topology(npu_smi.topology()).kinds == kinds
    assert parse_fields(npu_smi.board(0))["Compatibility"] == "OK"


@pytest.mark.parametrize(
    "text", ["", "dcmi module initialize failed. ret is -8005", "sh: npu-smi: not found", "|" * 500]
)
def test_failures_have_no_chips(text: str) -> None:
    assert parse_info(text).chips == ()
    assert parse_topology(text).names == ()


def _mutant(text: str, chance: random.Random) -> str:
    """The text with some of: other widths, glued values, a column or line missing or cut, odd characters."""
    lines = text.splitlines()
    for _ in range(chance.randint(1, 6)):
        at = chance.randrange(len(lines))
        line = lines[at]
        kind = chance.randrange(8)
        if kind == 0:
            lines[at] = re.sub(r" +", " " * chance.randint(0, 4), line)
        elif kind == 1:
            lines[at] = line[: chance.randrange(len(line) + 1)]
        elif kind == 2:
            cells = line.split("|")
            del cells[chance.randrange(len(cells))]
            lines[at] = "|".join(cells)
        elif kind == 3:
            lines.insert(at, chance.choice(lines))
        elif kind == 4 and len(lines) > 1:
            del lines[at]
        elif kind == 5:
            lines = [re.sub(r" +", " " * chance.randint(1, 9), line) for line in lines]
        elif kind == 6:
            lines[at] = re.sub(r"\d+", lambda _: chance.choice(["", "NA", "-", "9" * 30, "1.5", "٣"]), line)
        else:
            lines[at] = "".join(chance.choice("|+-=/ 09NA\x00é²") if chance.random() < 0.1 else c for c in line)
    return "\n".join(lines)


def test_a_thousand_mutants_crash_nothing() -> None:
    chance = random.Random(4)
    paired = NAMES["smi_info"]([("Ascend910", "OK", "")] * 4, "| 0 0 | 12 | python | 9 |", per_npu=2)
    for _ in range(1000):
        info = parse_info(_mutant(chance.choice([SEEN, paired]), chance))
        for chip in info.chips:
            assert chip.npu >= 0 and (chip.memory_total_mib is None or chip.memory_total_mib > 0)
        parse_topology(_mutant(LINKS_SEEN, chance))
        parse_fields(_mutant("\tNPU ID : 0\n\tSoftware Version : 25.5.0", chance))


def test_other_widths_change_nothing() -> None:
    chance = random.Random(5)
    for _ in range(50):
        wider = re.sub(r"(?<=\S) {2,}(?=\S)", lambda _: " " * chance.randint(1, 20), SEEN)
        assert parse_info(wider) == parse_info(SEEN)
