"""Classifiers, embeddings and rerankers beside ms-swift's own code: the tokens of texts, and the losses.

Tokens: every template that both know, on a made-up tokenizer. Losses: random embeddings and scores, 200 of each.
"""

from __future__ import annotations

import copy
import os
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from benchmarks.agreement.peer_code.tokens import TEXTS, control_tokens, tokenizer

from npukit.llm.chat.peers import ms_swift
from npukit.llm.chat.peers.data import BadTurns, table
from npukit.llm.config.options import Config, HeadOptions
from npukit.llm.tasks.task import of as task_of

TASKS = {"classify": "seq_cls", "rerank": "reranker"}


def same_tokens() -> tuple[int, int]:
    from swift.template import TEMPLATE_MAPPING

    bytewise = tokenizer("bytes", control_tokens("ms_swift"))
    same = rows = 0
    for name in sorted(table("ms_swift")["templates"]):
        meta, own = TEMPLATE_MAPPING[name], copy.deepcopy(bytewise)
        our_meta = ms_swift.meta_named(name)
        assert our_meta
        for task in TASKS.values():
            if our_meta.kind == "reranker" and task != "reranker":
                continue
            own.model_info = SimpleNamespace(
                task_type=task, config=SimpleNamespace(problem_type=None), max_model_len=None
            )
            own.model_meta = SimpleNamespace(is_multimodal=False, is_reward=False)
            try:
                template = meta.template_cls(own, meta)
            except Exception as error:  # of a processor that the installed transformers has otherwise
                print(f"{name}: ms-swift cannot make this template here: {error}", file=sys.stderr)
                break
            template.set_mode("train")
            for turns in _conversations(task):
                theirs = _theirs(template, turns)
                try:
                    ours: Any = ms_swift.Writer(our_meta, copy.deepcopy(bytewise)).row(turns)[0]
                except BadTurns:
                    ours = None
                rows += 1
                same += theirs == ours
                if theirs != ours and rows - same <= 5:
                    print(name, task, turns, theirs, ours)
    return same, rows


def _theirs(template: Any, turns: list[dict[str, str]]) -> Any:
    try:
        return template._encode_truncated(_inputs(turns))["input_ids"]
    except Exception:
        return None


def _inputs(turns: list[dict[str, str]]) -> Any:
    from swift.template.template_inputs import StdTemplateInputs

    return StdTemplateInputs.from_dict({"messages": [dict(turn) for turn in turns]})


def _conversations(task: str) -> Iterator[list[dict[str, str]]]:
    for text in TEXTS:
        user = {"role": "user", "content": text}
        if task == "reranker":
            yield [user, {"role": "assistant", "content": "a document"}]
        else:
            yield [user]
            yield [{"role": "system", "content": "Be brief."}, user]


def largest_differences() -> dict[str, float]:
    from swift.loss import loss_map

    largest: dict[str, float] = {}
    random = torch.Generator().manual_seed(0)
    for _ in range(200):
        counts = [2 + int(torch.randint(0, 4, (), generator=random)) for _ in range(4)]
        embedded = torch.nn.functional.normalize(torch.randn(sum(counts), 16, generator=random), dim=1)
        labels = torch.cat([torch.tensor([1.0] + [0.0] * (count - 2)) for count in counts])
        for in_batch in (True, False):
            os.environ["INFONCE_USE_BATCH"] = str(in_batch)
            theirs = loss_map["infonce"](None, None)({"last_hidden_state": embedded}, labels)
            ours = _ours("embed", embedded, counts, labels, in_batch=in_batch)
            _note(largest, f"infonce in_batch={in_batch}", theirs, ours)
        os.environ["INFONCE_USE_BATCH"] = "True"
        for questions, documents in ((True, False), (False, True), (True, True)):
            switches = {"MASK_FAKE_NEGATIVE": True, "INCLUDE_QQ": questions, "INCLUDE_DD": documents}
            with patch.dict(os.environ, {f"INFONCE_{name}": str(value) for name, value in switches.items()}):
                theirs = loss_map["infonce"](None, None)({"last_hidden_state": embedded}, labels)
            options = {"questions": questions, "documents": documents, "fake_margin": 0.1}
            _note(largest, f"infonce {options}", theirs, _ours("embed", embedded, counts, labels, **options))
        pairs, similar = embedded[:4], torch.randint(0, 2, (2,), generator=random).float()
        for name in ("cosine_similarity", "contrastive", "online_contrastive"):
            theirs = loss_map[name](None, None)({"last_hidden_state": pairs}, similar)
            _note(largest, name, theirs, _ours("embed", pairs, [2, 2], similar, similarity=name))
        scores = torch.randn(12, 1, generator=random)
        fits = torch.tensor([1.0, 0, 0, 0, 1, 0, 0, 1, 1, 0, 0, 0])
        for name in ("pointwise", "listwise"):
            theirs = loss_map[f"{name}_reranker"](None, None)(SimpleNamespace(logits=scores), fits)
            _note(largest, name, theirs, _ours("rerank", scores, [12], fits, ranking=name, temperature=1.0))
    return largest


def _ours(task: str, values: Any, counts: list[int], targets: Any, **options: Any) -> Any:
    config = Config.model_construct(task=task, head=HeadOptions(**options))  # type: ignore[call-arg]
    batch = {"input_ids": None, "attention_mask": None, "texts": torch.tensor(counts), "targets": targets}
    return task_of(config).loss(config)(lambda **_: values, batch)


def _note(largest: dict[str, float], name: str, theirs: Any, ours: Any) -> None:
    largest[name] = max(largest.get(name, 0.0), abs(float(theirs) - float(ours)))


def show() -> None:
    """Compare, and print how much is equal."""
    same, rows = same_tokens()
    print(f"tokens: {same:,} of {rows:,} texts equal")
    for name, difference in largest_differences().items():
        print(f"{name:24} largest difference of 200 losses {difference:.1e}")
