"""Models that classify texts, embed them, or rank documents for a question, instead of writing text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

from npukit.llm.config.options import Config, DataOptions
from npukit.llm.data.layout import question_of
from npukit.llm.data.media import with_tags
from npukit.llm.data.row import BadRow, Conversation, Layout, LeftOut, Row
from npukit.llm.data.texts import Texts, documents, labels_of, tokenised_texts
from npukit.llm.tasks.task import Learning, Task


class Head(Task):
    """What the three tasks share: their rows are texts with labels."""

    verb = "sft"
    columns_tell = True
    shares_media: ClassVar[bool] = False  # whether the images of a question belong to every text of its row

    def problems(self, config: Config) -> Iterator[tuple[str, str]]:
        yield from super().problems(config)
        if config.data.template is not None and config.data.tokens != "ms_swift":
            text = f"task {self.name} reads plain text: leave data.template out, or set data.tokens=ms_swift."
            yield "data.template", text

    def can_join(self, config: Config) -> bool:
        return False

    def uses_template(self, data: DataOptions) -> bool:
        return data.template is not None

    def tokens_depend_on(self, data: DataOptions) -> Any:
        return data.template is None

    def row(self, row: dict[str, Any], layout: Layout) -> Row:
        row, media = with_tags(row)
        if "input_ids" in row:  # rows of ms-swift's cached_dataset
            return self.tokenised(row)
        texts = self.texts(question_of(row, layout), row, layout)
        return replace(texts, media=media, are_shared=self.shares_media) if media else texts

    def texts(self, question: Conversation, row: dict[str, Any], layout: Layout) -> Texts:
        """Return the texts of a row and their labels."""
        raise NotImplementedError

    def tokenised(self, row: dict[str, Any]) -> Texts:
        """Return the texts and labels of a row that ms-swift has tokenised."""
        return tokenised_texts([row["input_ids"]], row)

    def learning(self, config: Config, train: Any, validation: Any, collate: Any) -> Learning:
        from npukit.llm.data.collate import tokens_of_texts
        from npukit.llm.tasks.losses.head import TextCollator, TextRows, texts_in

        made = partial(TextRows, draw=self.draw(config), shares_images=self.shares_media)
        train, validation = (rows if rows is None else made(rows) for rows in (train, validation))
        texts = TextCollator(collate, self.targets(config))
        return Learning(train, validation, texts, self.loss(config), texts_in, tokens_of_texts)

    def draw(self, config: Config) -> Any:
        """Return a function that chooses some texts of a row for a step, or None to use all of them."""
        return None

    def targets(self, config: Config) -> Any:
        """Return a function that makes a batch's targets from the labels of its rows."""
        from npukit.llm.tasks.losses.head import all_labels

        return all_labels

    def loss(self, config: Config) -> Any:
        """Return the mean loss of a batch, as ms-swift defines it."""
        raise NotImplementedError


class Classify(Head):
    """Assigns a class, several classes or a number to a text."""

    name = "classify"
    summary = "a classifier of texts (classify)"
    uses: ClassVar[frozenset[str]] = frozenset({"chat", "classify"})

    def texts(self, question: Conversation, row: dict[str, Any], layout: Layout) -> Texts:
        return Texts((question,), labels_of(row))

    def new_layer(self, config: Config) -> int:
        return config.head.labels

    def targets(self, config: Config) -> Any:
        from npukit.llm.tasks.losses.head import classes

        return partial(classes, options=config.head)

    def loss(self, config: Config) -> Any:
        from npukit.llm.tasks.losses.head import classified

        return partial(classified, options=config.head)


class Embed(Head):
    """Makes the embeddings of similar texts similar."""

    name = "embed"
    summary = "an embedding model (embed)"
    uses: ClassVar[frozenset[str]] = frozenset({"chat", "embed", "temperature"})

    def texts(self, question: Conversation, row: dict[str, Any], layout: Layout) -> Texts:
        fitting, others = documents(row, "user")
        label = labels_of(row)[0] if row.get("label") is not None else 1.0
        if layout.min_label is not None and label < layout.min_label:
            raise LeftOut
        return Texts((question, fitting[0], *others), (label, *[0.0] * len(others)))

    def tokenised(self, row: dict[str, Any]) -> Texts:
        raise BadRow("has input_ids that task embed cannot read")

    def set_output(self, model: Any, config: Config, tokenizer: Any) -> None:
        from npukit.llm.models.heads import return_embeddings

        return_embeddings(model)

    def loss(self, config: Config) -> Any:
        from npukit.llm.tasks.losses.head import embedded

        return partial(embedded, options=config.head, sharing=config.training.sequence_parallel)


class Rerank(Head):
    """Scores documents that fit a question higher than others."""

    name = "rerank"
    summary = "a reranker (rerank)"
    uses: ClassVar[frozenset[str]] = frozenset({"chat", "rerank", "temperature"})
    shares_media = True

    def texts(self, question: Conversation, row: dict[str, Any], layout: Layout) -> Texts:
        fitting, others = documents(row, "assistant")
        pairs: Sequence[Conversation] = [[*question, *document] for document in (*fitting, *others)]
        return Texts(tuple(pairs), (1.0,) * len(fitting) + (0.0,) * len(others))

    def tokenised(self, row: dict[str, Any]) -> Texts:
        return tokenised_texts(row["input_ids"], row, label_each=True)

    def new_layer(self, config: Config) -> int:
        return int(config.head.yes is None)

    def set_output(self, model: Any, config: Config, tokenizer: Any) -> None:
        from npukit.llm.models.heads import return_preference
        from npukit.llm.tasks.losses.head import token_of

        if config.head.yes is not None:
            return_preference(model, *(token_of(tokenizer, word) for word in (config.head.yes, config.head.no)))

    def draw(self, config: Config) -> Any:
        from npukit.llm.tasks.losses.head import draw_documents

        return partial(draw_documents, options=config.head)

    def loss(self, config: Config) -> Any:
        from npukit.llm.tasks.losses.head import ranked

        return partial(ranked, options=config.head)


TASKS = (Classify(), Embed(), Rerank())
