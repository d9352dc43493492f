"""The interface of a task: its rows, batches, loss and metrics, and its requirements for the configuration."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from npukit.llm import tasks
from npukit.llm.config.options import Config, DataOptions
from npukit.llm.data.row import Layout, Row

Batch = dict[str, Any]
Log = Callable[[str], None]


@dataclass(frozen=True)
class Learning:
    """What a Trainer needs from a task: examples, their collation, and functions of a batch."""

    train: Any
    validation: Any
    collate: Callable[[Any], Batch]
    loss: Callable[[Any, Batch], Any]  # the mean over the items of a batch
    weight: Callable[[Batch], int]  # the number of items in that mean
    size: Callable[[Batch], int]  # the number of tokens, from which speed is computed
    metrics: Callable[[Any, Batch], dict[str, Any]] | None = None  # metrics of evaluations besides the loss


class Task:
    """A way to train a language model. The defaults are those of plain fine-tuning with padded rows.

    Configurations are checked without torch, so methods that compute something import it themselves.
    """

    name: ClassVar[str]
    summary: ClassVar[str]  # one line for `npukit train --explain task`
    verb: ClassVar[str]  # the npukit verb that trains it, besides `npukit train`
    uses: ClassVar[frozenset[str]] = frozenset()  # groups of options with an effect, see llm/config/options.py

    streams: ClassVar[bool] = False  # rows may be read during training
    packs: ClassVar[bool] = False  # rows are packed before the first step
    models_tokens: ClassVar[bool] = False  # the loss is only the next-token loss
    counts_tokens: ClassVar[bool] = True  # rows are trained on token by token
    rows_per_item: ClassVar[int] = 1  # rows of the model for each row of the data
    columns_tell: ClassVar[bool] = False  # each row is parsed by its own columns, not by the layout of its data set
    samples: ClassVar[bool] = False  # the model generates the answers that it learns from
    counts_everything: ClassVar[bool] = False  # the loss includes questions

    def program(self, config: Config) -> str:
        """Return the module that each process of a training runs. If the model generates, it includes the engine."""
        generates = self.samples or config.evaluation.predict_with_generate
        return "npukit.rl.rank" if generates else "npukit.llm.finetune.rank"

    def problems(self, config: Config) -> Iterator[tuple[str, str]]:
        """Yield the options that do not suit this task, each with a sentence."""
        if config.data.streaming and not self.streams:
            yield "data.streaming", f"task {self.name} reads its rows before it begins: set data.streaming=false."

    def check_ranks(self, config: Config, ranks: int) -> None:
        """Raise NpukitError if this number of ranks cannot train with this configuration."""
        config.training.check_devices(ranks)

    def can_join(self, config: Config) -> bool:
        """Return whether the rows of a batch may be concatenated instead of padded."""
        return True

    def joins(self, config: Config, can_pack: bool) -> bool:
        """Return whether they are concatenated; `can_pack` says whether the model can attend to packed rows."""
        return config.data.packing

    def uses_template(self, data: DataOptions) -> bool:
        """Return whether rows are written with a chat template."""
        return True

    def data_options(self, data: DataOptions) -> DataOptions:
        """Return the options that rows are prepared with."""
        return data if self.packs else data.model_copy(update={"packing": False})

    def tokens_depend_on(self, data: DataOptions) -> Any:
        """Return further values that the tokens of a row depend on."""
        return None

    def check_layout(self, layout: Layout, table: str) -> None:
        """Raise NpukitError if the rows of a table are for another task."""

    def row(self, row: dict[str, Any], layout: Layout) -> Row:
        """Parse a row, whose columns have npukit's names. Raise BadRow or LeftOut if it cannot be used."""
        raise NotImplementedError

    def new_layer(self, config: Config) -> int:
        """Return the number of outputs of a new output layer, or 0 to keep the model's."""
        return 0

    def set_output(self, model: Any, config: Config, tokenizer: Any) -> None:
        """Change the model's output for the loss, before adapters are added."""

    def after_tuning(self, model: Any, tuned: Any, config: Config, device: Any) -> None:
        """Change the model after adapters have been added."""

    def learning(self, config: Config, train: Any, validation: Any, collate: Any) -> Learning:
        """Return examples, collation, loss and metrics. `collate` makes batches of rows of tokens."""
        raise NotImplementedError

    def flops_per_token(self, model: Any) -> float | None:
        """Return the floating-point operations of a training step per token, if known."""
        return None

    def before_training(self, learning: Learning, trainer: Any, config: Config, log: Log) -> None:
        """Prepare the data before the first step, with the model on its devices."""


def of(config: Config) -> Task:
    """Return the task of a configuration."""
    return named(config.task)


def named(name: str) -> Task:
    """Return the task with this name.

    >>> named("pt").counts_everything
    True
    """
    task: Task = tasks.known()[name]
    return task
