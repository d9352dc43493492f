"""What custom kernels compute, judging by their names, and what replaces them."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from dataclasses import dataclass

from npukit.facts.data import load_rows
from npukit.facts.target import Target
from npukit.facts.torch_npu.support import has_own_op

_OWN = "torch_npu."


@dataclass(frozen=True)
class KernelKind:
    """A kind of kernel. The comments at the head of kernels.yaml explain the fields."""

    name: str
    pattern: str
    torch: str
    npu: str
    note: str
    package: str = ""

    def remedy(self, target: Target) -> str:
        """What to use instead, as sentences."""
        op = self.npu.removeprefix(_OWN)
        is_there = not self.npu.startswith(_OWN) or "." in op or has_own_op(op, target.torch_npu)
        npu = (
            f"{self.npu}{f' (package {self.package})' if self.package else ''} on NPUs" if is_there and self.npu else ""
        )
        use = ", or ".join(filter(None, (self.torch, npu)))
        return f"It looks like {self.name}. " + (f"Use {use}. " if use else "") + f"Note: {self.note}."


@functools.cache
def _kernels() -> tuple[KernelKind, ...]:
    return tuple(load_rows("kernels.yaml", KernelKind))


def kernel_named(names: Iterable[str]) -> KernelKind | None:
    """The kind of kernel that one of these names suggests; the most specific kinds come first.

    >>> kernel_named(["ms_deform_attn_forward"]).npu
    'mx_driving.multi_scale_deformable_attn'
    """
    lowered = [_words(name) for name in names]
    matching = (kernel for name in lowered for kernel in _kernels() if re.search(kernel.pattern, name))
    return next(matching, None)


def _words(name: str) -> str:
    """A name in lower case, with underscores between its words.

    >>> _words("RMSNormKernel")
    'rms_norm_kernel'
    """
    parted = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name)
    return re.sub(r"\W+", "_", parted).lower()
