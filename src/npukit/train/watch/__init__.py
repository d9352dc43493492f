"""What a training run reports while it runs and when it ends."""

from npukit.train.watch.summary import Summary
from npukit.train.watch.watch import Watch

__all__ = ["Summary", "Watch"]
