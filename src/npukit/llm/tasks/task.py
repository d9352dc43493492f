"""The interface of a task: its rows, batches, loss and metrics, and its demands on the configuration."""

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
    """What a Trainer needs from a task: examples, their collation, and the functions of a batch."""

    train: Any
    validation: Any
    collate: Callable[[Any], Batch]
    loss: Callable[[Any, Batch], Any]  # the mean over the items of a batch
    weight: Callable[[Batch], int]  # the number of items in that mean
    size: Callable[[Batch], int]  # tokens, for the speed
    metrics: Callable[[Any, Batch], dict[str, Any]] | None = None  # of evaluation, if it is more than the loss


class Task:
    """A way to train a language model. The defaults are those of plain fine-tuning with padded rows.

    Configurations are checked without torch, so methods that compute import it themselves.
    """

    name: ClassVar[str]
    summary: ClassVar[str]  # one line of `npukit train --explain task`
    verb: ClassVar[str]  # the npukit verb that trains it, besides `npukit train`
    uses: ClassVar[frozenset[str]] = frozenset()  # groups of options with an effect, see `llm/config/options.py`

    streams: ClassVar[bool] = False  # rows may be read during training
    packs: ClassVar[bool] = False  # rows are packed before the first step
    models_tokens: ClassVar[bool] = False  # the loss is only the next-token loss
    counts_tokens: ClassVar[bool] = True  # rows are trained on token by token
    rows_per_item: ClassVar[int] = 1  # rows of the model for each row of the data
    columns_tell: ClassVar[bool] = False  # each row is read by its own columns, whatever the data set's layout
    samples: ClassVar[bool] = False  # the model generates the answers that it learns from
    counts_everything: ClassVar[bool] = False  # the loss includes questions

    def program(self, config: Config) -> str:
        """The module that each process of a training runs; where the model generates, it includes the engine."""
        generates = self.samples or config.evaluation.predict_with_generate
        return "npukit.rl.rank" if generates else "npukit.llm.finetune.rank"

    def problems(self, config: Config) -> Iterator[tuple[str, str]]:
        """The options that do not suit this task, with a sentence about each."""
        if config.data.streaming and not self.streams:
            yield "data.streaming", f"task {self.name} reads its rows before it begins: set data.streaming=false."

    def check_ranks(self, config: Config, ranks: int) -> None:
        """Raise NpukitError for a number of ranks that cannot train with this configuration."""
        config.training.check_devices(ranks)

    def can_join(self, config: Config) -> bool:
        """Whether rows of a batch may be concatenated instead of padded."""
        return True

    def joins(self, config: Config, can_pack: bool) -> bool:
        """Whether they are, for a model that can or cannot attend to packed rows."""
        return config.data.packing

    def uses_template(self, data: DataOptions) -> bool:
        """Whether rows are written with a chat template."""
        return True

    def data_options(self, data: DataOptions) -> DataOptions:
        """The options that rows are prepared with."""
        return data if self.packs else data.model_copy(update={"packing": False})

    def tokens_depend_on(self, data: DataOptions) -> Any:
        """Further values that the tokens of a row depend on."""
        return None

    def check_layout(self, layout: Layout, table: str) -> None:
        """Raise NpukitError for a table whose rows are for another task."""

    def row(self, row: dict[str, Any], layout: Layout) -> Row:
        """Parse a row, whose columns have npukit's names; raises BadRow or LeftOut."""
        raise NotImplementedError

    def new_layer(self, config: Config) -> int:
        """The outputs of a new layer that replaces the output layer; 0 keeps the output layer."""
        return 0

    def set_output(self, model: Any, config: Config, tokenizer: Any) -> None:
        """Change the model's output for the loss, before adapters are added."""

    def after_tuning(self, model: Any, tuned: Any, config: Config, device: Any) -> None:
        """Change the model after adapters have been added."""

    def learning(self, config: Config, train: Any, validation: Any, collate: Any) -> Learning:
        """Examples, batches, loss and metrics; `collate` makes batches of rows of tokens."""
        raise NotImplementedError

    def flops_per_token(self, model: Any) -> float | None:
        """Floating-point operations of a training step per token, if known."""
        return None

    def before_training(self, learning: Learning, trainer: Any, config: Config, log: Log) -> None:
        """Called before the first step, with the model on its devices."""


def of(config: Config) -> Task:
    """The task of a configuration."""
    return named(config.task)


def named(name: str) -> Task:
    """The task with this name.

    >>> named("pt").counts_everything
    True
    """
    task: Task = tasks.known()[name]
    return task
