"""Non-maximum suppression, of upright boxes and rotated ones."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from npukit.simulate.ops.registry import kernel


def _overlaps(boxes: Tensor) -> Tensor:
    """Intersection over union of each corner box with each."""
    low = torch.maximum(boxes[:, None, :2], boxes[None, :, :2])
    high = torch.minimum(boxes[:, None, 2:4], boxes[None, :, 2:4])
    common = (high - low).clamp(min=0).prod(-1)
    area = (boxes[:, 2:4] - boxes[:, :2]).prod(-1)
    return common / (area[:, None] + area[None, :] - common)


def _kept(overlaps: Tensor, scores: Tensor, iou_threshold: float, score_threshold: float, most: int) -> list[int]:
    """The boxes that stay, the best first: none overlaps a better one too much."""
    kept: list[int] = []
    alive = scores > score_threshold
    for place in scores.sort(descending=True, stable=True).indices.tolist():
        if alive[place] and len(kept) < most:
            kept.append(place)
            alive &= ~(overlaps[place] > iou_threshold)
    return kept


@kernel("npu_nms_v4")
def nms_v4(
    boxes: Tensor, scores: Tensor, max_output_size: int, iou_threshold: Tensor, scores_threshold: Tensor,
    pad_to_max_output_size: bool = False,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """(places of the boxes that stay, padded with zeros; how many they are)."""
    most = int(max_output_size)
    places = torch.zeros(most, dtype=torch.int32, device=boxes.device)
    if boxes.is_meta:
        return places, places.new_zeros(())
    limits = float(iou_threshold), float(scores_threshold)
    kept = _kept(_overlaps(boxes.float()), scores.float(), *limits, most)
    places[: len(kept)] = torch.tensor(kept, dtype=torch.int32)
    return places, torch.tensor(len(kept), dtype=torch.int32)


@kernel("npu_nms_with_mask")
def nms_with_mask(boxes: Tensor, iou_threshold: float) -> tuple[Tensor, Tensor, Tensor]:
    """(the boxes, their places, 1 where one stays); the last of a box's five numbers is its score."""
    places = torch.arange(boxes.shape[0], dtype=torch.int32, device=boxes.device)
    mask = torch.zeros_like(places, dtype=torch.uint8)
    if not boxes.is_meta:
        kept = _kept(_overlaps(boxes.float()), boxes[:, 4].float(), float(iou_threshold), -math.inf, boxes.shape[0])
        mask[kept] = 1
    return boxes[:, :5].clone(), places, mask


@kernel("npu_batch_nms")
def batch_nms(
    boxes: Tensor, scores: Tensor, score_threshold: float, iou_threshold: float, max_size_per_class: int,
    max_total_size: int, change_coordinate_frame: bool = False, transpose_box: bool = False,
) -> tuple[Tensor, ...]:  # fmt: skip
    """(boxes, scores, classes, number) of the best of each image, suppressed by class and padded with zeros.

    Boxes are [batch, number, classes or 1, 4], scores [batch, number, classes].
    """
    batch = boxes.shape[0]
    out_boxes = boxes.new_zeros(batch, max_total_size, 4)
    out_scores, out_classes = boxes.new_zeros(2, batch, max_total_size).unbind(0)
    number = torch.zeros(batch, dtype=torch.int32, device=boxes.device)
    if boxes.is_meta:
        return out_boxes, out_scores.clone(), out_classes.clone(), number
    for image in range(batch):
        kept: list[tuple[float, int, Tensor]] = []
        for kind in range(scores.shape[2]):
            of_class = boxes[image, :, min(kind, boxes.shape[2] - 1)]
            value = scores[image, :, kind].float()
            near = _kept(_overlaps(of_class.float()), value, iou_threshold, score_threshold, max_size_per_class)
            kept += [(float(value[place]), kind, of_class[place]) for place in near]
        kept.sort(key=lambda entry: -entry[0])
        for place, (value_of, kind, box) in enumerate(kept[:max_total_size]):
            out_boxes[image, place], out_scores[image, place], out_classes[image, place] = box, value_of, kind
        number[image] = min(len(kept), max_total_size)
    return out_boxes, out_scores.clone(), out_classes.clone(), number


def _rectangles(boxes: Tensor, corners: bool) -> Tensor:
    """The four points of (x, y, w, h, degrees) boxes, or of (x1, y1, x2, y2, degrees) ones: [..., 4, 2]."""
    if corners:
        centre, size = (boxes[..., :2] + boxes[..., 2:4]) / 2, boxes[..., 2:4] - boxes[..., :2]
    else:
        centre, size = boxes[..., :2], boxes[..., 2:4]
    angle = boxes[..., 4] * (math.pi / 180) * (-1 if corners else 1)
    unit = boxes.new_tensor([[-0.5, -0.5], [0.5, -0.5], [0.5, 0.5], [-0.5, 0.5]])
    points = unit * size.unsqueeze(-2)
    cos, sin = angle.cos()[..., None], angle.sin()[..., None]
    x, y = points[..., 0], points[..., 1]
    return torch.stack((x * cos - y * sin, x * sin + y * cos), -1) + centre.unsqueeze(-2)


def _cross(a: Tensor, b: Tensor) -> Tensor:
    return a[..., 0] * b[..., 1] - a[..., 1] * b[..., 0]


def _inside(points: Tensor, rectangle: Tensor) -> Tensor:
    """Which points lie in a rectangle: on the same side of all its edges, the border included."""
    edges = rectangle.roll(-1, -2) - rectangle
    sides = _cross(edges.unsqueeze(-3), points.unsqueeze(-2) - rectangle.unsqueeze(-3))
    return (sides >= -1e-9).all(-1) | (sides <= 1e-9).all(-1)


def common_area(a: Tensor, b: Tensor) -> Tensor:
    """The area that two rectangles [..., 4, 2] have in common: of the hull of corners inside and crossings of edges."""
    a, b = torch.broadcast_tensors(a.double(), b.double())
    origin, other = a.unsqueeze(-2), b.unsqueeze(-3)
    edge_a, edge_b = (a.roll(-1, -2) - a).unsqueeze(-2), (b.roll(-1, -2) - b).unsqueeze(-3)
    turn = _cross(edge_a, edge_b)
    along_a = _cross(other - origin, edge_b) / turn
    along_b = _cross(other - origin, edge_a) / turn
    crossing = (along_a >= 0) & (along_a <= 1) & (along_b >= 0) & (along_b <= 1) & (turn.abs() > 1e-12)
    points = torch.cat(((origin + along_a.unsqueeze(-1).nan_to_num(0, 0, 0) * edge_a).flatten(-3, -2), a, b), -2)
    counts = torch.cat((crossing.flatten(-2), _inside(a, b), _inside(b, a)), -1)
    number = counts.sum(-1, keepdim=True)
    middle = (points * counts.unsqueeze(-1)).sum(-2, keepdim=True) / number.clamp(min=1).unsqueeze(-1)
    offset = torch.where(counts.unsqueeze(-1), points - middle, 0.0)
    angle = torch.where(counts, torch.atan2(offset[..., 1], offset[..., 0]), torch.inf)
    order = angle.sort(-1).indices
    hull = offset.gather(-2, order.unsqueeze(-1).expand(offset.shape))
    used = counts.gather(-1, order)
    hull = torch.where(used.unsqueeze(-1), hull, hull[..., :1, :])  # unused places repeat the first point
    area = _cross(hull, hull.roll(-1, -2)).sum(-1).abs() / 2
    return torch.where(number.squeeze(-1) > 2, area, 0.0).float()


def _rotated(a: Tensor, b: Tensor, corners: bool, is_cross: bool) -> tuple[Tensor, Tensor, Tensor]:
    """(common area, area of a, area of b) of each pair, or of each with each."""
    first, second = _rectangles(a.float(), corners), _rectangles(b.float(), corners)
    areas = []
    for points in (first, second):
        areas.append(_cross(points[..., 1, :] - points[..., 0, :], points[..., 3, :] - points[..., 0, :]).abs())
    if is_cross:
        return common_area(first.unsqueeze(-3), second.unsqueeze(-4)), areas[0].unsqueeze(-1), areas[1].unsqueeze(-2)
    return common_area(first, second), areas[0], areas[1]


@kernel("npu_rotated_overlaps")
def rotated_overlaps(boxes: Tensor, query_boxes: Tensor, trans: bool = False) -> Tensor:
    """The common area of each box with each: [batch, n, 5] and [batch, m, 5], as centre, size and degrees."""
    return _rotated(boxes, query_boxes, trans, True)[0].to(boxes.dtype)


@kernel("npu_rotated_iou")
def rotated_iou(
    boxes: Tensor, query_boxes: Tensor, trans: bool = False, mode: int = 0, is_cross: bool = True,
    v_threshold: float = 0.0, e_threshold: float = 0.0,
) -> Tensor:  # fmt: skip
    """Common area over the union (mode 0), or over the first box's area (1)."""
    common, area, query_area = _rotated(boxes, query_boxes, trans, is_cross)
    whole = area.expand_as(common) if mode == 1 else area + query_area - common
    return (common / whole).to(boxes.dtype)


@kernel("npu_nms_rotated")
def nms_rotated(
    boxes: Tensor, scores: Tensor, iou_threshold: float, scores_threshold: float = 0.0, max_output_size: int = -1,
    mode: int = 0,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """(places of the rotated boxes that stay, how many); mode 1 takes boxes given by corners."""
    common, area, other = _rotated(boxes, boxes, mode == 1, True)
    most = boxes.shape[0] if max_output_size < 0 else max_output_size
    if boxes.is_meta:
        return torch.empty(most, dtype=torch.int32, device="meta"), torch.empty(1, dtype=torch.int32, device="meta")
    kept = _kept(common / (area + other - common), scores.float(), iou_threshold, scores_threshold, most)
    return torch.tensor(kept, dtype=torch.int32), torch.tensor([len(kept)], dtype=torch.int32)
