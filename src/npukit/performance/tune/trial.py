"""One rank of a short run whose speed is measured: `python -m npukit.performance.tune.trial`."""

from __future__ import annotations

from npukit.llm.finetune import rank


def main() -> None:
    config = rank.taken_over()
    from npukit.llm.finetune import train as finetune  # takes seconds to import
    from npukit.train import Trainer

    class Measured(Trainer):
        """Trains as ever, and leaves no model behind."""

        def _write_model(self) -> None:
            self.parallel.wait()

    finetune.Trainer = Measured  # type: ignore[attr-defined]
    finetune.train(config)


if __name__ == "__main__":
    main()
