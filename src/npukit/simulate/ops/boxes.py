"""Boxes: how much two overlap, and their encodings relative to anchors."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from npukit.simulate.ops.common import gradients, wide
from npukit.simulate.ops.registry import kernel


@kernel("npu_iou", "npu_ptiou")
def iou(boxes: Tensor, truth: Tensor, mode: int = 0) -> Tensor:
    """Intersection over union, or over the truth's area (mode 1), as [truth, boxes]; rounded to fp16.

    Sides are 0.01 longer in the areas, not in the intersection: a box has less than 1 in common with itself. Areas are
    fp16, in which 0.01 is nothing beside a long side: torch_npu's own tests show it.
    """
    a, b = boxes.half().unsqueeze(0), truth.half().unsqueeze(1)
    low, high = torch.maximum(a[..., :2], b[..., :2]), torch.minimum(a[..., 2:], b[..., 2:])
    common = wide(high - low).clamp(min=0).prod(-1)
    area_a, area_b = (wide((t[..., 2] - t[..., 0] + 0.01) * (t[..., 3] - t[..., 1] + 0.01)) for t in (a, b))
    whole = area_b.expand_as(common) if mode == 1 else area_a + area_b - common
    return (common / whole).half().to(boxes.dtype)


def _corners(boxes: Tensor, trans: bool) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """x1, y1, x2, y2 of [4, n] boxes, which are given by centre and size if trans."""
    x, y, w, h = boxes
    return (x - w / 2, y - h / 2, x + w / 2, y + h / 2) if trans else (x, y, w, h)


def _pairs(a: Tensor, b: Tensor, is_cross: bool) -> tuple[Tensor, Tensor]:
    """Boxes one by one as [4, 1, n], or each with each as [4, truths, n]."""
    return (a.unsqueeze(1), b.unsqueeze(2)) if is_cross else (a.unsqueeze(1), b.unsqueeze(1))


def _overlap(a: Tensor, b: Tensor, trans: bool, is_cross: bool, mode: int, eps: float) -> tuple[Tensor, ...]:
    """(overlap, width and height of both, of the hull, squared distance of the centres)."""
    a, b = _pairs(a, b, is_cross)
    ax1, ay1, ax2, ay2 = _corners(a, trans)
    bx1, by1, bx2, by2 = _corners(b, trans)
    wide_part = (torch.minimum(ax2, bx2) - torch.maximum(ax1, bx1)).clamp(min=0)
    high_part = (torch.minimum(ay2, by2) - torch.maximum(ay1, by1)).clamp(min=0)
    common = wide_part * high_part
    aw, ah, bw, bh = ax2 - ax1, ay2 - ay1 + eps, bx2 - bx1, by2 - by1 + eps
    whole = bw * bh + eps if mode == 1 else aw * ah + bw * bh - common + eps
    hull_w = torch.maximum(ax2, bx2) - torch.minimum(ax1, bx1)
    hull_h = torch.maximum(ay2, by2) - torch.minimum(ay1, by1)
    distance = ((bx1 + bx2 - ax1 - ax2).pow(2) + (by1 + by2 - ay1 - ay2).pow(2)) / 4
    return common / whole, whole, aw, ah, bw, bh, hull_w, hull_h, distance


def _giou(a: Tensor, b: Tensor, trans: bool, is_cross: bool, mode: int) -> Tensor:
    overlap, whole, _, _, _, _, hull_w, hull_h, _ = _overlap(a, b, trans, is_cross, mode, 1e-16)
    hull = hull_w * hull_h
    return (overlap - (hull - whole) / hull).T


def _diou(a: Tensor, b: Tensor, trans: bool, is_cross: bool, mode: int) -> Tensor:
    overlap, _, _, _, _, _, hull_w, hull_h, distance = _overlap(a, b, trans, is_cross, mode, 1e-9)
    return overlap - distance / (hull_w.pow(2) + hull_h.pow(2) + 1e-9)


def _ciou(a: Tensor, b: Tensor, trans: bool, is_cross: bool, mode: int) -> tuple[Tensor, Tensor]:
    """Distance and shape terms; the shape term's weight counts as a constant in gradients."""
    overlap, _, aw, ah, bw, bh, hull_w, hull_h, distance = _overlap(a, b, trans, is_cross, mode, 1e-9)
    angle = torch.atan(bw / bh) - torch.atan(aw / ah)
    shape = 4 / math.pi**2 * angle.pow(2)
    weight = (shape / (1 - overlap + shape + 1e-9)).detach()
    return overlap - distance / (hull_w.pow(2) + hull_h.pow(2) + 1e-9) - weight * shape, angle


@kernel("npu_giou")
def giou(a: Tensor, b: Tensor, trans: bool = False, is_cross: bool = False, mode: int = 0) -> Tensor:
    """Generalized overlap of [4, n] boxes as [n, 1]; torch_npu takes trans and no is_cross only."""
    return _giou(wide(a), wide(b), trans, is_cross, mode).to(a.dtype).contiguous()


@kernel("npu_giou_backward")
def giou_backward(
    grad: Tensor, a: Tensor, b: Tensor, trans: bool = False, is_cross: bool = False, mode: int = 0
) -> tuple[Tensor, ...]:
    """Gradients of both boxes."""
    grads = gradients(lambda x, y: _giou(x, y, trans, is_cross, mode), [wide(a), wide(b)], wide(grad))
    return tuple(g.to(a.dtype) for g in grads)


@kernel("npu_diou")
def diou(a: Tensor, b: Tensor, trans: bool = False, is_cross: bool = False, mode: int = 0) -> Tensor:
    """Overlap less the centres' distance, of [4, n] boxes as [1, n] (or [truths, n] with is_cross)."""
    return _diou(wide(a), wide(b), trans, is_cross, mode).to(a.dtype)


@kernel("npu_diou_backward")
def diou_backward(
    grad: Tensor, a: Tensor, b: Tensor, trans: bool = False, is_cross: bool = False, mode: int = 0
) -> tuple[Tensor, ...]:
    """Gradients of both boxes."""
    grads = gradients(lambda x, y: _diou(x, y, trans, is_cross, mode), [wide(a), wide(b)], wide(grad))
    return tuple(g.to(a.dtype) for g in grads)


@kernel("_npu_ciou")
def ciou(
    a: Tensor, b: Tensor, trans: bool = False, is_cross: bool = True, mode: int = 0, atan_sub_flag: bool = False
) -> tuple[Tensor, Tensor]:
    """(overlap less distance and shape terms, difference of the angles) of [4, n] boxes, as [1, n]."""
    overlap, angle = _ciou(wide(a), wide(b), trans, is_cross, mode)
    return overlap.to(a.dtype), angle


@kernel("npu_ciou")
def ciou_alone(
    a: Tensor, b: Tensor, trans: bool = False, is_cross: bool = True, mode: int = 0, atan_sub_flag: bool = False
) -> Tensor:
    """The overlap alone, in inference mode; elsewhere it is built from the op above."""
    return ciou(a, b, trans, is_cross, mode)[0]


@kernel("npu_ciou_backward")
def ciou_backward(
    grad: Tensor, a: Tensor, b: Tensor, atan_sub: Tensor | None, trans: bool = False, is_cross: bool = True,
    mode: int = 0,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Gradients of both boxes; the kept angles are not needed here."""
    grads = gradients(lambda x, y: _ciou(x, y, trans, is_cross, mode)[0], [wide(a), wide(b)], wide(grad))
    return tuple(g.to(a.dtype) for g in grads)


def _centre_and_size(boxes: Tensor) -> tuple[Tensor, Tensor]:
    """Centres and sizes of corner boxes whose last pixel belongs to them."""
    return (boxes[..., :2] + boxes[..., 2:]) * 0.5, boxes[..., 2:] - boxes[..., :2] + 1


@kernel("npu_bounding_box_encode")
def bounding_box_encode(
    anchors: Tensor, truth: Tensor, means0: float, means1: float, means2: float, means3: float,
    stds0: float, stds1: float, stds2: float, stds3: float,
) -> Tensor:  # fmt: skip
    """((centre difference / size, log of the size ratio) - mean) / std, computed in fp16."""
    centre, size = _centre_and_size(anchors.float())
    target_centre, target_size = _centre_and_size(truth.float())
    delta = torch.cat(((target_centre - centre) / size, (target_size / size).log()), -1).half()
    means, inverse = (
        delta.new_tensor([means0, means1, means2, means3]),
        delta.new_tensor([1 / stds0, 1 / stds1, 1 / stds2, 1 / stds3]),
    )
    return ((delta - means) * inverse).to(anchors.dtype)


@kernel("npu_bounding_box_decode")
def bounding_box_decode(
    rois: Tensor, deltas: Tensor, means0: float, means1: float, means2: float, means3: float,
    stds0: float, stds1: float, stds2: float, stds3: float, max_shape: list[int], wh_ratio_clip: float,
) -> Tensor:  # fmt: skip
    """The inverse of the encoding: the change of size is limited, and corners to the image of max_shape."""
    centre, size = _centre_and_size(rois.float())
    delta = deltas.float() * deltas.new_tensor([stds0, stds1, stds2, stds3], dtype=torch.float32)
    delta = delta + deltas.new_tensor([means0, means1, means2, means3], dtype=torch.float32)
    limit = abs(math.log(wh_ratio_clip))
    new_size = size * delta[..., 2:].clamp(-limit, limit).exp()
    new_centre = centre + size * delta[..., :2]
    corners = torch.cat((new_centre - new_size * 0.5 + 0.5, new_centre + new_size * 0.5 - 0.5), -1)
    if max_shape:
        height, width = max_shape[0] - 1, max_shape[-1] - 1
        corners = torch.minimum(corners.clamp(min=0), corners.new_tensor([width, height, width, height]))
    return corners.to(rois.dtype)


@kernel("npu_yolo_boxes_encode")
def yolo_boxes_encode(anchors: Tensor, truth: Tensor, stride: Tensor, performance_mode: bool = False) -> Tensor:
    """(centre difference / stride + 0.5 within (0, 1), log of the size ratio), nothing nearer to 0 than 1e-6."""
    a, b, eps = anchors.float(), truth.float(), 1e-6
    centre = (b[..., :2] + b[..., 2:] - a[..., :2] - a[..., 2:]) * 0.5 / stride.float().unsqueeze(-1) + 0.5
    size = ((b[..., 2:] - b[..., :2]) / (a[..., 2:] - a[..., :2])).clamp(min=eps).log()
    return torch.cat((centre.clamp(eps, 1 - eps), size), -1).to(anchors.dtype)


@kernel("npu_anchor_response_flags")
def anchor_response_flags(boxes: Tensor, featmap_size: list[int], stride: list[int], num_base_anchors: int) -> Tensor:
    """1 for every anchor of a cell that holds the centre of a box."""
    height, width = featmap_size
    centre = (boxes[:, :2].float() + boxes[:, 2:].float()) * 0.5
    column, row = (torch.floor(centre[:, i] / stride[i]).long() for i in range(2))
    cell = row * width + column
    inside = (cell >= 0) & (cell < height * width)
    flags = torch.zeros(height * width + 1, dtype=torch.uint8, device=boxes.device)
    flags = flags.scatter(0, torch.where(inside, cell, height * width), 1)[:-1]
    return flags.repeat_interleave(num_base_anchors)


@kernel("npu_grid_assign_positive")
def grid_assign_positive(
    assigned: Tensor, overlaps: Tensor, responsible: Tensor, max_overlaps: Tensor, argmax_overlaps: Tensor,
    gt_max_overlaps: Tensor, gt_argmax_overlaps: Tensor, num_gts: int, pos_iou_thr: float, min_pos_iou: float,
    gt_max_assign_all: bool,
) -> Tensor:  # fmt: skip
    """The number of the truth, from 1, for anchors that overlap it enough or best of all and are responsible."""
    able = responsible != 0
    result = torch.where(able & (max_overlaps > pos_iou_thr), (argmax_overlaps + 1).to(assigned.dtype), assigned)
    places = torch.arange(assigned.shape[0], device=assigned.device)
    for i in range(min(overlaps.shape[0], num_gts)):
        best = overlaps[i] == gt_max_overlaps[i] if gt_max_assign_all else places == gt_argmax_overlaps[i]
        result = torch.where(best & able & (gt_max_overlaps[i] > min_pos_iou), float(i + 1), result)
    return result


def _tangent(degrees: Tensor) -> Tensor:
    return torch.tan(degrees * (math.pi / 180))


@kernel("npu_rotated_box_encode")
def rotated_box_encode(anchors: Tensor, truth: Tensor, weight: Tensor) -> Tensor:
    """Differences of [batch, 5, n] corner boxes with an angle in degrees; that of the tangents for the angle."""
    a, b = anchors.float(), truth.float()
    size = a[:, 2:4] - a[:, :2]
    centre = (b[:, :2] + b[:, 2:4] - a[:, :2] - a[:, 2:4]) * 0.5 / size
    ratio = ((b[:, 2:4] - b[:, :2]) / size).log()
    delta = torch.cat((centre, ratio, _tangent(b[:, 4:]) - _tangent(a[:, 4:])), 1)
    return (delta * weight.float().reshape(1, 5, 1)).to(anchors.dtype)


@kernel("npu_rotated_box_decode")
def rotated_box_decode(anchors: Tensor, deltas: Tensor, weight: Tensor) -> Tensor:
    """The inverse of npu_rotated_box_encode."""
    a, d = anchors.float(), deltas.float() / weight.float().reshape(1, 5, 1)
    size = a[:, 2:4] - a[:, :2]
    centre = (a[:, :2] + a[:, 2:4]) * 0.5 + d[:, :2] * size
    half = size * d[:, 2:4].exp() * 0.5
    angle = torch.atan(_tangent(a[:, 4:]) + d[:, 4:]) * (180 / math.pi)
    return torch.cat((centre - half, centre + half, angle), 1).to(anchors.dtype)
