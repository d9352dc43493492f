"""A character LSTM trained by a class; logs to TensorBoard, with a step schedule of the learning rate."""
import torch
from torch import nn
from torch.utils.tensorboard import SummaryWriter


class Model(nn.Module):
    def __init__(self, vocabulary=20, width=16):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width, padding_idx=0)
        self.lstm = nn.LSTM(width, width, 2, batch_first=True)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens):
        hidden, _ = self.lstm(self.embed(tokens))
        return self.head(hidden)


class Trainer:
    def __init__(self, gpu=0):
        torch.cuda.set_device(gpu)
        self.gpu = gpu
        self.model = Model().cuda(gpu)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.5, momentum=0.9)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 4, gamma=0.5)
        self.criterion = nn.CrossEntropyLoss(ignore_index=0).cuda(gpu)
        self.writer = SummaryWriter("runs")

    def step(self, number, tokens):
        tokens = tokens.cuda(self.gpu, non_blocking=True)
        logits = self.model(tokens[:, :-1])
        loss = self.criterion(logits.flatten(0, 1), tokens[:, 1:].flatten())
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 0.25)
        self.optimizer.step()
        self.scheduler.step()
        self.writer.add_scalar("train/loss", loss.item(), number)


torch.manual_seed(3)
trainer = Trainer()
for number in range(10):
    trainer.step(number, torch.randint(0, 20, (8, 12)))
trainer.writer.close()
