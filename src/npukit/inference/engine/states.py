"""States of a fixed size: what linear attention, state spaces and short convolutions keep of the tokens before.

transformers' layers of these kinds read and write their states through the cache that they are called with. Here every
such layer has the states of all rows of the batch. It is called with those of a pass: when decoding with all rows at
once, each a sequence of one token; with prompts one chunk after another.

There is only the state after a sequence's last token. Another sequence cannot begin with it, and it cannot be taken
back to an earlier token: no prefix is reused, and no tokens are drafted.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from npukit.inference.engine.adapters import Adapters
from npukit.inference.engine.paged import PagedRows, Prefill
from npukit.llm.models.vision import language_model

_ARGUMENTS = ("cache_params", "past_key_values")  # what layers call the cache
_INPUTS, _RECURRENT = "inputs", "recurrent"
Kept = dict[tuple[str, int], Tensor]  # a layer can have several states of a kind


class RowStates:
    """A layer's states of some rows, with the methods of a cache of transformers that the layer calls: the last inputs
    of convolutions, [rows, channels, width], and the states of recurrences, [rows, ...].
    """

    def __init__(self, kept: Kept) -> None:
        self.kept = kept

    def get_conv_state(self, layer_idx: int, state_idx: int = 0) -> Tensor | None:
        """The last inputs of a convolution, which the layer may change in place."""
        return self.kept.get((_INPUTS, state_idx))

    def get_recurrent_state(self, layer_idx: int, state_idx: int = 0) -> Tensor | None:
        """The state of a recurrence, which the layer may change in place."""
        return self.kept.get((_RECURRENT, state_idx))

    def update_conv_state(self, conv_states: Tensor, layer_idx: int, state_idx: int = 0, **_: Any) -> Tensor:
        """The inputs that were kept and the new ones, of which the last are kept now."""
        kept = self.kept[_INPUTS, state_idx]
        both = torch.cat([kept, conv_states], -1)
        self.kept[_INPUTS, state_idx] = both[..., -kept.shape[-1] :]
        return both

    def update_recurrent_state(self, recurrent_states: Tensor, layer_idx: int, state_idx: int = 0, **_: Any) -> Tensor:
        """Keep the state of a recurrence."""
        self.kept[_RECURRENT, state_idx] = recurrent_states
        return recurrent_states

    def has_previous_state(self, layer_idx: int | None = None, state_idx: int | None = None) -> bool:
        """Always: before the first token, states are zero."""
        return True

    def is_recording_past(self, layer_idx: int) -> bool:
        """Never: only the last states are kept."""
        return False


@dataclass(frozen=True)
class StateLayer:
    """A layer that keeps states, and those of one row before its first token."""

    module: nn.Module
    argument: str  # which the layer takes its cache as
    one_row: Kept
    continues: bool  # whether it takes up a state with several tokens, and not only with the next one

    @property
    def bytes_per_row(self) -> int:
        """The memory that one sequence takes."""
        return sum(state.nbytes for state in self.one_row.values())


class States:
    """The states of all rows in these layers, which compute with them `within` a pass; otherwise, as in training, they
    compute as they did.
    """

    def __init__(self, layers: list[StateLayer], rows: int, adapters: Adapters) -> None:
        self.adapters = adapters
        self.tokens: PagedRows | Prefill | None = None
        for layer in layers:
            layer.module.forward = _Forward(self, layer, rows)

    @contextlib.contextmanager
    def within(self, tokens: PagedRows | Prefill) -> Iterator[None]:
        """A context in which the model computes these tokens."""
        self.tokens = tokens
        try:
            yield
        finally:
            self.tokens = None


class _Forward:
    """The forward of a layer with states."""

    def __init__(self, states: States, layer: StateLayer, rows: int) -> None:
        layer.module.__dict__.pop("forward", None)  # of an engine before this one
        self._states, self._layer, self._plain = states, layer, layer.module.forward
        self._kept = {key: one.new_zeros(rows, *one.shape[1:]) for key, one in layer.one_row.items()}

    def __call__(self, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Any:
        """The layer's result for hidden states [1, tokens, size]."""
        tokens = self._states.tokens
        if tokens is None:
            return self._plain(hidden_states, *args, **kwargs)
        if isinstance(tokens, PagedRows):
            return self._decode(hidden_states, tokens)
        return self._prefill(hidden_states, tokens)

    def _decode(self, hidden: Tensor, tokens: PagedRows) -> Tensor:
        rows = tokens.rows
        states = RowStates({key: kept[rows] for key, kept in self._kept.items()})
        result = self._run(hidden.transpose(0, 1), states)
        for key, state in states.kept.items():
            self._kept[key][rows] = state.to(self._kept[key].dtype)
        return result.transpose(0, 1)

    def _prefill(self, hidden: Tensor, tokens: Prefill) -> Tensor:
        results, end = [], 0
        for row, new, total in zip(tokens.rows, tokens.new, tokens.total, strict=True):
            start, end = end, end + new
            own = {key: kept[row : row + 1] for key, kept in self._kept.items()}
            if new == total:
                for state in own.values():
                    state.zero_()
            states = RowStates(dict(own))
            step = new if self._layer.continues or new == total else 1
            for at in range(start, end, step):
                with self._states.adapters.at(slice(at, at + step)):
                    results.append(self._run(hidden[:, at : at + step], states))
            for key, state in states.kept.items():
                own[key].copy_(state)
        return torch.cat(results, 1)

    def _run(self, hidden: Tensor, states: RowStates) -> Tensor:
        result: Tensor = self._plain(hidden, **{self._layer.argument: states})
        return result


def release_states(model: nn.Module) -> None:
    """Remove the states from a model and free their memory."""
    for module in language_model(model).modules():
        if isinstance(module.__dict__.get("forward"), _Forward):
            del module.forward


@torch.no_grad()
def state_layers(model: Any) -> list[StateLayer]:
    """The layers of the language model that keep states in a cache of transformers. Two tokens show which, and what
    the layers do with them.
    """
    found = [(module, name) for module in language_model(model).modules() if (name := _cache_argument(module))]
    if not found:
        return []
    from transformers import DynamicCache
    from transformers.cache_utils import LinearAttentionCacheLayerMixin

    config = model.config.get_text_config()
    hidden = torch.randn(1, 2, config.hidden_size, generator=torch.Generator().manual_seed(0))
    hidden = hidden.to(model.device, model.dtype)
    cache, layers = DynamicCache(config=config), []
    for module, argument in found:
        used = cache.layers[module.layer_idx]
        if isinstance(used, LinearAttentionCacheLayerMixin):
            module(hidden, **{argument: cache})
            kinds = (_INPUTS, used.conv_states), (_RECURRENT, used.recurrent_states)
            kept = {(kind, index): state for kind, states in kinds for index, state in states.items()}
            one_row = {key: torch.zeros_like(state) for key, state in kept.items() if state is not None}
            layers.append(StateLayer(module, argument, one_row, _continues(module, argument, one_row, hidden)))
    return layers


def _continues(module: nn.Module, argument: str, one_row: Kept, hidden: Tensor) -> bool:
    """Whether another state before these tokens gives another result. Mamba's code begins anew with every prompt."""
    if not any(kind == _RECURRENT for kind, _ in one_row):
        return True
    ones = {key: one.clone() if key[0] == _INPUTS else torch.ones_like(one) for key, one in one_row.items()}
    zeros = {key: one.clone() for key, one in one_row.items()}
    first, second = (module(hidden, **{argument: RowStates(states)}) for states in (zeros, ones))
    return not torch.equal(first, second)


def _cache_argument(module: Any) -> str | None:
    """What a layer calls the cache that it reads its states from, if it is a layer that may have some."""
    if not hasattr(module, "layer_idx") or hasattr(module, "is_causal"):
        return None
    if any(hasattr(part, "layer_idx") for part in module.modules() if part is not module):
        return None  # what is inside has them
    names = inspect.signature(type(module).forward).parameters
    return next((name for name in _ARGUMENTS if name in names), None)
