"""Parameters without a gradient in a step, which DDP does not expect."""

from __future__ import annotations

import re

from torch import nn

from npukit.errors import NpukitError
from npukit.report.report import few


def explain_unused(error: BaseException, model: nn.Module) -> NpukitError | None:
    """DDP's error of the following step as one sentence with the parameters' names; None for any other error."""
    if "Expected to have finished reduction in the prior iteration" not in str(error):
        return None
    trained = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    listed = re.search(r"did not receive grad for rank \d+: ([\d ]+)", str(error))
    names = [trained[int(number)] for number in listed[1].split()] if listed else []
    shown = f" ({few(names)})" if names else ""
    return NpukitError(
        f"Some trainable parameters took no part in the loss of a step{shown}: freeze them (requires_grad_(False)) if "
        "they never do, or set find_unused_parameters: true, which costs a little time."
    )
