"""What a task decides: its rows, its batches, its loss, its metrics, and what it needs and keeps."""

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
    """What a trainer needs of a task: examples, how they become batches, and what is computed of a batch."""

    train: Any
    validation: Any
    collate: Callable[[Any], Batch]
    loss: Callable[[Any, Batch], Any]  # the mean over the items of a batch
    weight: Callable[[Batch], int]  # how many items that mean is over
    size: Callable[[Batch], int]  # tokens, by which speed is counted
    metrics: Callable[[Any, Batch], dict[str, Any]] | None = None  # what evaluation reports, if not the loss alone


class Task:
    """A way to train a language model. What a subclass leaves out is as in plain fine-tuning with padded rows.

    The class is read without torch, to check a configuration; methods that compute import what they need.
    """

    name: ClassVar[str]
    summary: ClassVar[str]  # one line of `npukit train --explain task`
    verb: ClassVar[str]  # the npukit verb that trains it, besides `npukit train`
    program: ClassVar[str] = "npukit.llm.finetune.rank"  # the module that each process of a training runs
    uses: ClassVar[frozenset[str]] = frozenset()  # groups of options that have an effect: see `llm/config/options.py`

    streams: ClassVar[bool] = False  # rows may be read while the model trains
    packs: ClassVar[bool] = False  # rows are packed before the first step
    models_tokens: ClassVar[bool] = False  # the loss is that of every next token, nothing else
    counts_tokens: ClassVar[bool] = True  # the tokens of rows are what is trained on
    rows_per_item: ClassVar[int] = 1  # of the model for each row of the data
    columns_tell: ClassVar[bool] = False  # a row is understood by its own columns, whatever the layout of the others
    samples: ClassVar[bool] = False  # the model writes the answers that it learns from
    counts_everything: ClassVar[bool] = False  # questions count in the loss as answers do

    def problems(self, config: Config) -> Iterator[tuple[str, str]]:
        """What it needs of a configuration: options, with a sentence about each that does not suit."""
        if config.data.streaming and not self.streams:
            yield "data.streaming", f"task {self.name} reads its rows before it begins: set data.streaming=false."

    def can_join(self, config: Config) -> bool:
        """Whether rows of a batch may lie one behind the other, instead of being padded."""
        return True

    def joins(self, config: Config, can_pack: bool) -> bool:
        """Whether they do, for a model that can attend to packed rows or not."""
        return config.data.packing

    def uses_template(self, data: DataOptions) -> bool:
        """Whether rows are written with a chat template."""
        return True

    def data_options(self, data: DataOptions) -> DataOptions:
        """The options that rows are prepared with."""
        return data if self.packs else data.model_copy(update={"packing": False})

    def tokens_depend_on(self, data: DataOptions) -> Any:
        """What the tokens of a row depend on besides the options that they always depend on."""
        return None

    def check_layout(self, layout: Layout, table: str) -> None:
        """Raise NpukitError for a table whose rows are for another task."""

    def row(self, row: dict[str, Any], layout: Layout) -> Row:
        """What a row (with our names of the columns) means; raises BadRow, or LeftOut."""
        raise NotImplementedError

    def new_layer(self, config: Config) -> int:
        """How many numbers a new layer in place of the output layer gives a text; 0 keeps the output layer."""
        return 0

    def set_output(self, model: Any, config: Config, tokenizer: Any) -> None:
        """Make the model return what the loss is computed of, before adapters are added."""

    def after_tuning(self, model: Any, tuned: Any, config: Config, device: Any) -> None:
        """The same, once it is known what of the model is trained."""

    def learning(self, config: Config, train: Any, validation: Any, collate: Any) -> Learning:
        """Examples, batches, loss and metrics; `collate` makes batches of rows of tokens."""
        raise NotImplementedError

    def flops_per_token(self, model: Any) -> float | None:
        """Floating-point operations of a training step for each token, where they are known."""
        return None

    def before_training(self, learning: Learning, trainer: Any, config: Config, log: Log) -> None:
        """What is computed before the first step, with the model on its devices."""


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
