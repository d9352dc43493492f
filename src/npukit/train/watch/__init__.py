"""What a training run tells while it goes on and when it has ended."""

from npukit.train.watch.summary import Summary
from npukit.train.watch.watch import Watch

__all__ = ["Summary", "Watch"]
