"""mmengine's Runner on noise: training with automatic mixed precision, evaluation, a checkpoint, a schedule."""

import torch
from mmengine.evaluator import BaseMetric
from mmengine.model import BaseModel
from mmengine.runner import Runner
from torch.utils.data import DataLoader, TensorDataset


class Classifier(BaseModel):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.ReLU(), torch.nn.Flatten(),
            torch.nn.Linear(8 * 6 * 6, 4),
        )  # fmt: skip

    def forward(self, images, labels, mode):
        if mode == "loss" and torch.cuda.is_available():
            assert torch.is_autocast_enabled(), "automatic mixed precision is not on"
        scores = self.layers(images)
        if mode == "loss":
            return {"loss": torch.nn.functional.cross_entropy(scores, labels)}
        return scores, labels


class Accuracy(BaseMetric):
    def process(self, data_batch, data_samples):
        scores, labels = data_samples
        self.results.append({"right": (scores.argmax(1) == labels).sum().item(), "size": len(labels)})

    def compute_metrics(self, results):
        return {"accuracy": sum(batch["right"] for batch in results) / sum(batch["size"] for batch in results)}


torch.manual_seed(0)
data = DataLoader(TensorDataset(torch.randn(16, 3, 8, 8), torch.randint(0, 4, (16,))), batch_size=4)
model = Classifier().cuda()
runner = Runner(
    model=model, work_dir="work", train_dataloader=data, val_dataloader=data, val_evaluator={"type": Accuracy},
    train_cfg={"by_epoch": True, "max_epochs": 2, "val_interval": 1}, val_cfg={},
    optim_wrapper={"type": "AmpOptimWrapper", "optimizer": {"type": "SGD", "lr": 0.05, "momentum": 0.9}},
    param_scheduler={"type": "LinearLR", "start_factor": 0.1, "end": 4, "by_epoch": False},
    default_hooks={"logger": {"type": "LoggerHook", "interval": 1}}, randomness={"seed": 0},
)  # fmt: skip
runner.train()
