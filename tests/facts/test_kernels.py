"""Custom kernels and what replaces them."""

from __future__ import annotations

from pathlib import Path

import pytest

from npukit.facts.kernels import kernel_named
from npukit.facts.target import Target
from npukit.migrate.analysis import analyze


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("ms_deform_attn_forward", "multi-scale deformable attention"),
        ("MultiScaleDeformableAttention", "multi-scale deformable attention"),
        ("deformable_im2col_gpu_kernel", "deformable convolution"),
        ("nms_kernel", "non-maximum suppression"),
        ("nms_rotated_cuda", "rotated boxes"),
        ("roi_align_forward_cuda_kernel", "RoI align"),
        ("RMSNormForward", "RMS normalisation"),
        ("_rms_norm_fwd_fused", "RMS normalisation"),
        ("rotary_kernel", "rotary embedding"),
        ("flash_fwd_kernel", "attention"),
        ("_attn_fwd", "attention"),
        ("scaled_upper_triang_masked_softmax_warp_forward", "masked softmax"),
        ("multi_tensor_apply_kernel", "fused optimizer"),
        ("kDequantizeBlockwise", "quantised product"),
        ("furthest_point_sampling_kernel", "point sampling and grouping"),
        ("upfirdn2d_kernel_small", "StyleGAN's resampling"),
        ("my_kernel", None),
        ("columns", None),
        ("transform", None),
    ],
)
def test_what_a_kernel_computes(name: str, kind: str | None) -> None:
    kernel = kernel_named([name])
    assert (kernel.name if kernel else None) == kind


def test_an_operator_is_named_only_where_torch_npu_has_it() -> None:
    kernel = kernel_named(["rms_norm"])
    assert kernel and "torch_npu.npu_rms_norm" in kernel.remedy(Target.of())
    assert "deprecated" not in kernel.remedy(Target.of())


def test_findings_name_the_replacement(tmp_path: Path) -> None:
    (tmp_path / "roi_align.cu").write_text("__global__ void roi_align_kernel(float *x) { x[threadIdx.x] = 1; }")
    (tmp_path / "setup.py").write_text(
        "from torch.utils.cpp_extension import CUDAExtension\nCUDAExtension('MultiScaleDeformableAttention', ['a.cu'])"
    )
    (tmp_path / "norm.py").write_text(
        "import triton\n@triton.jit\ndef rms_norm_kernel(x):\n    pass\n@triton.jit\ndef other(x):\n    pass"
    )
    remedies = {
        (finding.code, finding.subject)
        for finding in analyze([tmp_path]).findings
        if finding.code in ("NPK204", "NPK205", "NPK206")
    }
    assert remedies == {
        ("NPK204", "RoI align"),
        ("NPK205", "multi-scale deformable attention"),
        ("NPK206", "RMS normalisation"),
        ("NPK206", ""),
    }
