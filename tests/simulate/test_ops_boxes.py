"""The simulated ops of object detection, on boxes whose answer is known."""

from __future__ import annotations

import math

import pytest
import torch

from npukit.simulate.ops import boxes, regions, suppression


def test_overlap_is_rounded_as_torch_npus_tests_have_it() -> None:
    large = boxes.iou(torch.tensor([[18.0, 45, 80, 130], [38, 85, 70, 230]]), torch.tensor([[10.0, 55, 85, 160]]))
    assert large.tolist() == [pytest.approx([0.5474, 0.2373], rel=1e-4)]
    small = torch.tensor([[0.0, 0, 10, 20], [10, 10, 20, 20]])
    assert boxes.iou(small, small[1:]).tolist() == [pytest.approx([0, 0.9961], rel=1e-4)]
    assert boxes.iou(small, torch.tensor([[0.0, 0, 10, 10]])).tolist() == [pytest.approx([0.4985, 0], rel=1e-4)]


def test_encoding_a_box_and_decoding_it_gives_the_box() -> None:
    anchors = torch.tensor([[10.0, 20.0, 50.0, 40.0], [0.0, 0.0, 30.0, 30.0]])
    truth = torch.tensor([[12.0, 18.0, 60.0, 45.0], [5.0, 2.0, 25.0, 33.0]])
    settings = (0.0, 0.0, 0.0, 0.0, 0.1, 0.1, 0.2, 0.2)
    deltas = boxes.bounding_box_encode(anchors, truth, *settings)
    decoded = boxes.bounding_box_decode(anchors, deltas, *settings, [100, 100], 0.01)
    torch.testing.assert_close(decoded, truth, rtol=0, atol=0.1)  # the encoding is rounded to fp16


def test_rotated_boxes_encode_and_decode() -> None:
    anchors = torch.tensor([[[44.3], [9.1], [88.8], [25.9], [64.8]]])
    truth = torch.tensor([[[39.2], [1.0], [78.1], [29.6], [51.6]]])
    weight = torch.ones(5)
    deltas = boxes.rotated_box_encode(anchors, truth, weight)
    torch.testing.assert_close(boxes.rotated_box_decode(anchors, deltas, weight), truth)


def test_ciou_of_equal_boxes_is_one_and_falls_with_distance() -> None:
    box = torch.tensor([[5.0, 5.0], [5.0, 5.0], [2.0, 2.0], [4.0, 4.0]])
    other = box.clone()
    other[0, 1] = 9.0
    overlap, angle = boxes.ciou(box, other, True, False)
    assert overlap.shape == (1, 2)
    assert overlap[0].tolist() == pytest.approx([1.0, -16 / (6**2 + 4**2)], abs=1e-5)
    assert not angle.any()


def test_responsible_anchors_are_those_of_the_cell_of_a_centre() -> None:
    flags = boxes.anchor_response_flags(torch.tensor([[0.0, 0.0, 6.0, 2.0]]), [2, 3], [2, 2], 2)
    assert flags.tolist() == [0, 0, 1, 1, 0, 0] + [0] * 6


def test_suppression_keeps_the_best_of_each_heap() -> None:
    candidates = torch.tensor([[0.0, 0.0, 10.0, 10.0], [1.0, 1.0, 11.0, 11.0], [50.0, 50.0, 60.0, 60.0]])
    scores = torch.tensor([0.6, 0.9, 0.3])
    places, number = suppression.nms_v4(candidates, scores, 3, torch.tensor(0.5), torch.tensor(0.1))
    assert (places.tolist(), int(number)) == ([1, 2, 0], 2)
    _, _, mask = suppression.nms_with_mask(torch.cat((candidates, scores.unsqueeze(1)), 1), 0.5)
    assert mask.tolist() == [0, 1, 1]
    actual, values, classes, count = suppression.batch_nms(
        candidates.reshape(1, 3, 1, 4), scores.reshape(1, 3, 1), 0.2, 0.5, 4, 4
    )
    assert values[0].tolist() == pytest.approx([0.9, 0.3, 0.0, 0.0]) and int(count) == 2
    assert torch.equal(actual[0, 0], candidates[1])
    assert not classes.any()


def test_rotated_areas() -> None:
    square = torch.tensor([[[0.0, 0.0, 2.0, 2.0, 0.0]]])
    turned = torch.tensor([[[0.0, 0.0, 2.0, 2.0, 45.0], [1.0, 0.0, 2.0, 2.0, 0.0], [9.0, 9.0, 1.0, 1.0, 30.0]]])
    octagon = 8 * (math.sqrt(2) - 1)
    areas = suppression.rotated_overlaps(square, turned)
    assert areas[0, 0].tolist() == pytest.approx([octagon, 2.0, 0.0], abs=1e-4)
    shares = suppression.rotated_iou(square, turned)
    assert shares[0, 0].tolist() == pytest.approx([octagon / (8 - octagon), 1 / 3, 0.0], abs=1e-4)
    kept, number = suppression.nms_rotated(turned[0], torch.tensor([0.5, 0.9, 0.7]), 0.25)
    assert (kept.tolist(), number.tolist()) == ([1, 2], [2])


def test_roi_align_averages_bins_and_its_backward_is_the_adjoint() -> None:
    features = torch.arange(1.0, 37.0).reshape(1, 1, 6, 6)
    rois = torch.tensor([[0.0, -2.0, -2.0, 22.0, 22.0]])
    pooled = regions.roi_align(features, rois, 0.25, 3, 3, 2, 0)
    torch.testing.assert_close(pooled[0, 0], torch.tensor([[4.5, 6.5, 8.5], [16.5, 18.5, 20.5], [28.5, 30.5, 32.5]]))
    other, grad = torch.randn(1, 1, 6, 6), torch.randn(1, 1, 3, 3)
    back = regions.roi_align_backward(grad, rois, [1, 1, 6, 6], 3, 3, 0.25, 2, 0)
    forth = regions.roi_align(other, rois, 0.25, 3, 3, 2, 0)
    torch.testing.assert_close((back * other).sum(), (grad * forth).sum())


def test_position_sensitive_pooling_reads_each_bins_own_channel() -> None:
    features = torch.arange(8.0).reshape(1, 8, 1, 1).expand(1, 8, 4, 4)
    rois = torch.tensor([[[0.0], [0.0], [0.0], [3.0], [3.0]]])
    pooled = regions.ps_roi_pooling(features, rois, 1.0, 2, 2)
    torch.testing.assert_close(pooled, torch.arange(8.0).reshape(1, 2, 2, 2))
    back = regions.ps_roi_pooling_backward(torch.ones(1, 2, 2, 2), rois, 1.0, 2, 2, [4, 4])
    torch.testing.assert_close(back.sum(), torch.tensor(8.0))


def test_a_deformable_convolution_without_offsets_is_a_convolution() -> None:
    torch.manual_seed(0)
    x, weight, bias = torch.randn(1, 2, 5, 5), torch.randn(3, 2, 3, 3), torch.randn(3)
    offset = torch.cat((torch.zeros(1, 18, 5, 5), torch.ones(1, 9, 5, 5)), 1)
    settings = ([3, 3], [1, 1, 1, 1], [1, 1, 1, 1], [1, 1, 1, 1])
    y, taps = regions.deformable_conv2d(x, weight, offset, bias, *settings)
    assert taps.shape == (1, 2, 15, 15)
    leaves = [t.clone().requires_grad_() for t in (x, weight, bias)]
    expected = torch.nn.functional.conv2d(*leaves, padding=1)
    torch.testing.assert_close(y, expected.detach(), rtol=1e-4, atol=1e-5)
    grad = torch.randn_like(y)
    dx, dweight, _, dbias = regions.deformable_conv2d_backward(x, grad, taps, weight, offset, *settings)
    torch.testing.assert_close((dx, dweight, dbias), torch.autograd.grad(expected, leaves, grad), rtol=1e-4, atol=1e-4)
