import tempfile

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset

accelerator = Accelerator(cpu=not torch.accelerator.is_available())
model = torch.nn.Sequential(torch.nn.Linear(512, 2048), torch.nn.GELU(), torch.nn.Linear(2048, 512))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
loader = DataLoader(TensorDataset(torch.randn(32 * 14, 512)), batch_size=32)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
folder = tempfile.mkdtemp()
for step, (x,) in enumerate(loader):
    with accelerator.accumulate(model):
        loss = (model(x) - x).square().mean()
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
    accelerator.save_state(folder)  # slow: NPK808
