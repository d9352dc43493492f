"""Anchors are matched with the boxes of each picture before the loss is computed."""
import torch
from torch import nn
from torch.nn import functional as F

N_ANCHORS, IOU_THRESH = 400, 0.4


def iou(anchor_boxes, gt):
    lt = torch.maximum(anchor_boxes[:, :2], gt[:2])
    rb = torch.minimum(anchor_boxes[:, 2:], gt[2:])
    wh = (rb - lt).clamp(min=0)
    inter = wh[:, 0] * wh[:, 1]
    area = (anchor_boxes[:, 2:] - anchor_boxes[:, :2]).prod(1)
    return inter / (area + (gt[2:] - gt[:2]).prod() - inter)


def assign(anchor_boxes, boxes):
    matched = []
    for gt in boxes:  # slow: NPK809
        overlaps = iou(anchor_boxes, gt)  # slow: NPK809
        matched.append((overlaps > IOU_THRESH).float() * overlaps)  # slow: NPK809
    return torch.stack(matched).amax(0)


def make_boxes(n):
    corners = torch.rand(n, 2) * 0.7
    return torch.cat([corners, corners + 0.1 + torch.rand(n, 2) * 0.2], 1)


class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, N_ANCHORS))

    def forward(self, pooled):
        return self.features(pooled)


if __name__ == "__main__":
    head, anchors = Head(), make_boxes(N_ANCHORS)
    opt = torch.optim.SGD(head.parameters(), lr=1e-2, fused=True)
    dataset = [(torch.randn(8, 256), [make_boxes(24) for _ in range(8)]) for _ in range(14)]
    for pooled, truth in dataset:
        with torch.no_grad():
            quality = torch.stack([assign(anchors, boxes) for boxes in truth])  # slow: NPK809
        loss = F.binary_cross_entropy_with_logits(head(pooled), quality.clamp(0, 1))
        opt.zero_grad()
        loss.backward()
        opt.step()
