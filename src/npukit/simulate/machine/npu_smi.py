"""npu-smi for the simulated machine: the queries that scripts use, in the real tool's output format."""

from __future__ import annotations

import argparse
import os
import sys

from npukit.simulate.machine.chips import SimulatedChip, chips, simulated_card
from npukit.simulate.machine.home import DRIVER_VERSION

VERSION = f"{DRIVER_VERSION} (simulated)"
WIDE = "+" + "-" * 96 + "+"
COLUMNS = "+" + "+".join("-" * width for width in (27, 15, 52)) + "+"
BETWEEN_NPUS = COLUMNS.replace("-", "=")
LEGEND = {
    "X": "Self",
    "SYS": "Through PCIe and the links between NUMA nodes.",
    "PHB": "Through PCIe and the host bridge of a CPU.",
    "PIX": "Through one PCIe switch.",
    "PXB": "Through several PCIe switches.",
    "HCCS": "Through HCCS.",
    "SIO": "Between two dies of one package.",
    "HCCS_SW": "Through HCCS and a switch.",
    "NA": "Unknown.",
}


def info() -> str:
    """The table of all chips."""
    paired = simulated_card().links == "pairs"
    lines = [
        WIDE,
        f"| npu-smi {DRIVER_VERSION:<25}Version: {VERSION:<53}|",
        COLUMNS,
        "| NPU   Name                | Health        | Power(W)    Temp(C)           Hugepages-Usage(page)|",
        f"| {'Chip  Phy-ID' if paired else 'Chip':<26}"
        "| Bus-Id        | AICore(%)   Memory-Usage(MB)  HBM-Usage(MB)        |",
        BETWEEN_NPUS,
    ]
    npus = [chip.npu for chip in chips()]
    for chip in chips():
        same_npu_follows = chip.npu in npus[chip.device + 1 :]
        lines += [*_rows(chip, paired), WIDE if same_npu_follows else BETWEEN_NPUS]
    lines += [
        COLUMNS,
        "| NPU     Chip              | Process id    | Process name             | Process memory(MB)      |",
        BETWEEN_NPUS,
    ]
    for npu in sorted({chip.npu for chip in chips()}):
        lines += [f"| {f'No running processes found in NPU {npu}':<95}|", BETWEEN_NPUS]
    return "\n".join(lines)


def _rows(chip: SimulatedChip, paired: bool) -> list[str]:
    card = simulated_card()
    power = "-" if chip.number else "0.0"
    identity = f"{chip.number:<6}{chip.device}" if paired else f"{chip.number}"
    memory = f"0    / {card.memory_mib}"
    return [
        f"| {chip.npu:<6}{card.smi_name:<20}| {chip.health:<14}| {power:<12}{'0':<18}{'0    / 0':<21}|",
        f"| {identity:<26}| {chip.bus:<14}| {'0':<12}{'0    / 0':<18}{memory:<21}|",
    ]


def topology() -> str:
    """The matrix of links between chips, with the CPUs close to each."""
    card = simulated_card()
    prefix = "Phy-ID" if card.links == "pairs" else "NPU"
    names = [f"{prefix}{chip.device}" for chip in chips()]
    affinity = f"0-{(os.cpu_count() or 1) - 1}"
    rows = [["", *names, "CPU Affinity"]]
    for one, name in zip(chips(), names, strict=True):
        rows.append([name, *[_link(one, other, card.links) for other in chips()], affinity])
    matrix = "\n".join("".join(f"{cell:<11}" for cell in row).rstrip() for row in rows)
    legend = "\n".join(f"  {sign:<7} = {meaning}" for sign, meaning in LEGEND.items())
    return f"{matrix}\n\nLegend:\n\n{legend}"


def _link(one: SimulatedChip, other: SimulatedChip, links: str) -> str:
    if one == other:
        return "X"
    if links == "pairs":
        return "SIO" if one.npu == other.npu else "HCCS_SW"
    return {"mesh": "HCCS", "pcie": "PHB"}[links]


def ecc(npu: int) -> str:
    """The memory errors of one NPU's chips."""
    blocks = []
    for chip in _of_npu(npu):
        double = int(chip.health == "Alarm")
        counts = {"HBM Single Bit Error Count": 0, "HBM Double Bit Error Count": double}
        blocks.append(_fields({"NPU ID": npu, "Chip Count": 1, **counts, "Chip ID": chip.number}))
    return "\n\n".join(blocks)


def health(npu: int) -> str:
    """The health of one NPU's chips."""
    return "\n".join(_fields({"Health": chip.health, "Chip ID": chip.number}) for chip in _of_npu(npu))


def _of_npu(npu: int) -> list[SimulatedChip]:
    of_npu = [chip for chip in chips() if chip.npu == npu]
    if not of_npu:
        sys.exit(f"npu-smi: there is no NPU {npu}.")
    return of_npu


def _fields(pairs: dict[str, object]) -> str:
    return "\n".join(f"\t{name:<30} : {value}" for name, value in pairs.items())


def listing() -> str:
    """The cards, and how many chips each has."""
    counts: dict[int, int] = {}
    for chip in chips():
        counts[chip.npu] = counts.get(chip.npu, 0) + 1
    blocks = [_fields({"NPU ID": npu, "Chip Count": count}) for npu, count in counts.items()]
    return "\n\n".join([_fields({"Total Count": len(counts)}), *blocks])


def mapping() -> str:
    """The logical device of each chip."""
    rows: list[tuple[object, ...]] = [("NPU ID", "Chip ID", "Chip Logic ID", "Chip Name")]
    name = simulated_card().soc.replace("Ascend", "Ascend ")
    rows += [(chip.npu, chip.number, chip.device, name) for chip in chips()]
    return "\n".join("\t" + "".join(f"{cell:<31}" for cell in row) for row in rows)


def board(npu: int) -> str:
    """The model of one NPU and its driver."""
    mine = _of_npu(npu)
    return _fields(
        {
            "NPU ID": npu,
            "Product Name": f"Ascend {simulated_card().name} (simulated)",
            "Model": "NA",
            "Manufacturer": "npukit",
            "Serial Number": "NA",
            "Software Version": DRIVER_VERSION,
            "Firmware Version": "NA",
            "Compatibility": "OK",
            "PCIe Bus Info": mine[0].bus,
            "Slot ID": npu,
            "Chip Count": len(mine),
        }
    )


ABOUT_ONE = {"board": board, "ecc": ecc, "health": health}


def main() -> None:
    parser = argparse.ArgumentParser(prog="npu-smi", description="Management of the simulated NPUs.")
    parser.add_argument("-v", action="version", version=f"npu-smi version: {VERSION}", help="print the version")
    show = parser.add_subparsers(required=True).add_parser("info", help="show what there is")
    show.add_argument("-l", action="store_true", help="list the NPUs")
    show.add_argument("-m", action="store_true", help="map chips to logical devices")
    show.add_argument("-t", choices=["topo", *ABOUT_ONE], help="show this kind of information")
    show.add_argument("-i", type=int, default=0, help="the NPU that -t is about")
    show.add_argument("-c", type=int, help="the chip that -t is about; all are shown")
    asked = parser.parse_args()
    if asked.l:
        print(listing())
    elif asked.m:
        print(mapping())
    elif asked.t in ABOUT_ONE:
        print(ABOUT_ONE[asked.t](asked.i))
    else:
        print(topology() if asked.t else info())


if __name__ == "__main__":
    main()
