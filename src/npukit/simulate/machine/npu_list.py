"""npu-list: the device files of the NPUs that a container holds; here, of the simulated ones."""

from __future__ import annotations

from npukit.simulate.machine.chips import chips

for chip in chips():
    print(f"/dev/davinci{chip.device}")
