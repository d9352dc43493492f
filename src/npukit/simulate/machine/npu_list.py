"""npu-list, which shows which container uses which NPU. No container uses a simulated one."""

from __future__ import annotations

from npukit.simulate.machine.chips import chips

TITLES = ("Npu devices", "Container name", "Container id")
RULE = "+".join(["", *("-" * (len(title) + 2) for title in ("/dev/davinci0", *TITLES[1:])), ""])


def row(*cells: str) -> str:
    widths = (len("/dev/davinci0"), *(len(title) for title in TITLES[1:]))
    return "".join(f"| {cell:^{width}} " for cell, width in zip(cells, widths, strict=True)) + "|"


print(RULE, row(*TITLES), RULE, sep="\n")
for chip in chips():
    print(row(f"/dev/davinci{chip.device}", "None", "None"))
print(RULE)
