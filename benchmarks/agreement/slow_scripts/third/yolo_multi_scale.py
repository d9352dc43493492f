"""A detector's training loop: warm-up of the rates, several scales, a loss of three parts."""
import random

import torch
import torch.nn as nn

random.seed(0)
imgsz, gs, batch_size, nw = 128, 16, 8, 6


def conv(c1, c2, s=1):
    return nn.Sequential(nn.Conv2d(c1, c2, 3, s, 1, bias=False), nn.BatchNorm2d(c2), nn.SiLU())


class Detect(nn.Module):
    def __init__(self, nc=4):
        super().__init__()
        self.backbone = nn.Sequential(conv(3, 16, 2), conv(16, 32, 2), conv(32, 32), conv(32, 64, 2), conv(64, 64))
        self.head = nn.Conv2d(64, 5 + nc, 1)

    def forward(self, x):
        return self.head(self.backbone(x)).permute(0, 2, 3, 1)


def compute_loss(pred, targets):
    box = (pred[..., :4].sigmoid() - targets[:, None, None, :4]).abs().mean()
    obj = nn.functional.binary_cross_entropy_with_logits(pred[..., 4], torch.zeros_like(pred[..., 4]))
    cls = pred[..., 5:].logsumexp(-1).mean()
    return box * 0.05 + obj + cls * 0.5, torch.stack((box, obj, cls)).detach()


model = Detect()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, nesterov=True, foreach=True)
images = torch.randint(0, 255, (batch_size, 3, imgsz, imgsz), dtype=torch.uint8)
mloss = torch.zeros(3)
for i in range(14):
    imgs = images.float() / 255
    targets = torch.rand(batch_size, 5)
    if i <= nw:
        for x in optimizer.param_groups:
            x["lr"] = 0.01 * i / nw
    sz = random.randrange(int(imgsz * 0.5), int(imgsz * 1.5) + gs) // gs * gs
    imgs = nn.functional.interpolate(imgs, size=(sz, sz), mode="bilinear", align_corners=False)  # slow: NPK815
    pred = model(imgs)  # slow: NPK815
    loss, loss_items = compute_loss(pred, targets)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    mloss = (mloss * i + loss_items) / (i + 1)
