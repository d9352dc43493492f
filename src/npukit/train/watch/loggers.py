"""TensorBoard and other services; only those in options.loggers are imported."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Protocol

from npukit.errors import NpukitError
from npukit.train.options import TrainOptions


class Logger(Protocol):
    """A place for figures besides the log."""

    def log(self, step: int, figures: Mapping[str, float]) -> None: ...

    def close(self) -> None: ...


class _TensorBoard:
    def __init__(self, options: TrainOptions, start_step: int) -> None:
        writer = _need("torch.utils.tensorboard", "tensorboard").SummaryWriter
        # Hides what a killed run wrote after its last checkpoint.
        self._writer = writer(str(options.output / "tensorboard"), purge_step=start_step + 1 if start_step else None)

    def log(self, step: int, figures: Mapping[str, float]) -> None:
        for name, value in figures.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        self._writer.close()


class _Service:
    """wandb and swanlab, which share init, log and finish. The output names the project; a resumed run keeps its id."""

    def __init__(self, name: str, options: TrainOptions, start_step: int) -> None:
        self._module = _need(name, name)
        id_file = options.output / f"{name}.id"
        known = {"id": id_file.read_text().strip(), "resume": "allow"} if start_step and id_file.exists() else {}
        run = self._module.init(project=options.output.resolve().name, config=options.model_dump(mode="json"), **known)
        if run_id := getattr(run, "id", None):
            id_file.write_text(f"{run_id}\n")

    def log(self, step: int, figures: Mapping[str, float]) -> None:
        self._module.log(dict(figures), step=step)

    def close(self) -> None:
        self._module.finish()


class _MLflow:
    """MLflow's tracking server, or the folder that MLFLOW_TRACKING_URI names."""

    def __init__(self, options: TrainOptions, start_step: int) -> None:
        self._module = _need("mlflow", "mlflow")
        self._module.set_experiment(options.output.resolve().name)
        id_file = options.output / "mlflow.id"
        known = id_file.read_text().strip() if start_step and id_file.exists() else None
        id_file.write_text(f"{self._module.start_run(run_id=known).info.run_id}\n")

    def log(self, step: int, figures: Mapping[str, float]) -> None:
        self._module.log_metrics(dict(figures), step=step)

    def close(self) -> None:
        self._module.end_run()


def _need(module: str, package: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError:
        raise NpukitError(
            f"loggers names {package}, which is not installed: run `pip install {package}`, or leave it out."
        ) from None


def open_loggers(options: TrainOptions, start_step: int) -> list[Logger]:
    """The loggers in options.loggers."""
    kinds: dict[str, Callable[[TrainOptions, int], Logger]] = {"tensorboard": _TensorBoard, "mlflow": _MLflow}
    return [kinds.get(name, partial(_Service, name))(options, start_step) for name in options.loggers]
