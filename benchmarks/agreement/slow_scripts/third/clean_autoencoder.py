"""A convolutional autoencoder with an average of its weights."""
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn


def block(c_in, c_out, stride):
    return nn.Sequential(nn.Conv2d(c_in, c_out, 3, stride, 1), nn.BatchNorm2d(c_out), nn.ReLU(inplace=True))


net = nn.Sequential(
    block(3, 32, 2), block(32, 64, 2), block(64, 64, 1), nn.Upsample(scale_factor=2), block(64, 32, 1),
    nn.Upsample(scale_factor=2), nn.Conv2d(32, 3, 3, 1, 1),
)
ema = AveragedModel(net, multi_avg_fn=get_ema_multi_avg_fn(0.999))
opt = torch.optim.Adam(net.parameters(), lr=1e-3, fused=True)
images = torch.rand(32, 3, 64, 64)
for step in range(14):
    batch = images[torch.randperm(32)]
    loss = nn.functional.l1_loss(net(batch), batch)
    opt.zero_grad(set_to_none=True)
    loss.backward()
    opt.step()
    ema.update_parameters(net)
