"""The engine: requests in, tokens out."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from npukit.errors import NpukitError
from npukit.inference.engine.adapters import Adapters, LoadedAdapter, read_adapter
from npukit.inference.engine.attention import register
from npukit.inference.engine.cache import (
    Cache,
    CacheShape,
    attention_modules,
    cache_dtype,
    has_latent_attention,
    release_cache,
)
from npukit.inference.engine.defaults import PassSettings, pass_settings
from npukit.inference.engine.fused import fuse
from npukit.inference.engine.mtp import MultiTokenPrediction
from npukit.inference.engine.own_caches import OwnCaches
from npukit.inference.engine.pool import BlockPool
from npukit.inference.engine.request import (
    FinishReason,
    Output,
    Request,
    RequestOutput,
    SamplingParams,
    Stats,
    Token,
    check_request,
)
from npukit.inference.engine.results import PendingStep
from npukit.inference.engine.runner import Runner
from npukit.inference.engine.scheduler import MEMORY_BOUND_TOKENS, MEMORY_BOUND_TOKENS_ON_CPU, Scheduler
from npukit.inference.engine.sequence import Sequence
from npukit.inference.engine.sizes import blocks_that_fit, rows_that_fit
from npukit.inference.engine.speculative import DraftModel, PromptLookup, Proposer
from npukit.inference.engine.states import StateLayer, States, state_layers
from npukit.inference.engine.tower import Tower
from npukit.inference.engine.trial import TOKENS, agrees
from npukit.inference.engine.w8a8 import quantize
from npukit.launch.abilities import abilities
from npukit.llm import families
from npukit.llm.config.use import EngineOptions
from npukit.llm.models.experts import use_grouped_experts
from npukit.llm.models.next_tokens import NextTokenLayer
from npukit.llm.models.outline import UNLIMITED
from npukit.llm.models.vision import language_model

log = logging.getLogger(__name__)


class Engine:
    """Answers many requests at once with one model.

    `trained_in` is for a model that is also trained: the dtype that it computes in. Its modules are then left as they
    are, and the engine has to `sleep` while it is trained. For speculative decoding, `draft` is what proposes tokens:
    the engine of a smaller model, or the model's own layer for multi-token prediction.

    >>> engine = Engine(model, EngineOptions(max_model_len=4096))
    >>> engine.generate([Request((1, 2, 3), SamplingParams(temperature=0, max_tokens=2))])[0].ids
    [15, 7]
    """

    def __init__(
        self,
        model: Any,
        options: EngineOptions | None = None,
        trained_in: torch.dtype | None = None,
        draft: Engine | NextTokenLayer | None = None,
    ) -> None:
        options = options or EngineOptions()
        if options.quantization not in (None, "w8a8"):
            raise NpukitError(f"npukit's engine does not support the quantization {options.quantization}: use w8a8.")
        model.eval()
        self._model, self.device, self._vision = model, model.device, families.vision_of(model.config)
        self._own_attention = language_model(model).config._attn_implementation
        self._dtype, self._is_trained = trained_in or model.dtype, trained_in is not None
        use_grouped_experts(model)
        self.vocab_size = model.get_output_embeddings().weight.shape[0]
        self._num_embeddings = model.get_input_embeddings().weight.shape[0]  # may include tokens of images
        self.max_model_len = _max_model_len(model, options)
        self.is_paged = options.paged if options.paged is not None else _can_page(model, self.max_model_len)
        if options.quantization:
            quantize(model)
        layers = state_layers(model) if self.is_paged else []
        passes = pass_settings(options, model, self._dtype, self.is_paged, has_states=bool(layers))
        states = sum(layer.bytes_per_row for layer in layers)
        seqs = rows_that_fit(states, options.max_num_seqs, options.gpu_memory_utilization, self.device)

        self._adapters, self._num_loaded = Adapters(model), 0
        self._adapter_keys: dict[str, str] = {}  # by the names that requests can use
        self._draft = draft
        pool, self._runner, proposer = (
            self._make_paged(options, passes, layers, seqs) if self.is_paged else self._make_unpaged(options)
        )
        self._scheduler = Scheduler(
            pool,
            seqs,
            passes.max_num_batched_tokens,
            passes.enable_prefix_caching,
            passes.max_num_mixed_tokens,
            proposer,
            MEMORY_BOUND_TOKENS if abilities(self.device).own_memory else MEMORY_BOUND_TOKENS_ON_CPU,
        )
        self._async_scheduling = passes.async_scheduling and proposer is None
        self._pending: PendingStep | None = None
        self._sequences: dict[int, Sequence] = {}
        self._ended: list[Output] = []
        self._next_request_id = self._prompt_tokens = self._generated_tokens = 0
        self._draft_tokens = self._accepted_tokens = 0

    def _make_proposer(self, options: EngineOptions, cache: Cache) -> Proposer | None:
        """What drafts tokens, if anything should."""
        draft, count = self._draft, options.num_speculative_tokens
        if isinstance(draft, NextTokenLayer):
            return MultiTokenPrediction(self._model, draft, cache, self._adapters, count)
        if draft is not None:
            shared = min(self.vocab_size, draft.vocab_size)
            return DraftModel(draft.generate, draft.max_model_len, shared, count)
        return PromptLookup(options.prompt_lookup) if options.prompt_lookup else None

    def _make_paged(
        self, options: EngineOptions, passes: PassSettings, layers: list[StateLayer], seqs: int
    ) -> tuple[BlockPool, Runner | OwnCaches, Proposer | None]:
        """A paged cache with the states of these layers, what runs the model on it, and what drafts tokens."""
        model, size = self._model, passes.block_size
        if not layers and len(attention_modules(model)) != model.config.get_text_config().num_hidden_layers:
            raise ValueError("some layers are computed several times, each time with other keys and values")
        if layers and (self._draft is not None or options.prompt_lookup):
            raise NpukitError(
                f"{model.config.model_type} models keep a state that guessed tokens would change: leave out "
                "--prompt-lookup, --speculative-model and --speculative-method."
            )
        extra = self._draft.body if isinstance(self._draft, NextTokenLayer) else None
        dtype = cache_dtype(options.kv_cache_dtype, self._dtype, self.device)
        shape = CacheShape.of(model, dtype, extra_layers=extra is not None)
        blocks = options.num_blocks or blocks_that_fit(
            shape,
            size,
            seqs,
            self.max_model_len,
            options.gpu_memory_utilization,
            self.device,
            states=sum(layer.bytes_per_row for layer in layers),
        )
        self.max_model_len = min(self.max_model_len, (blocks - 1) * size)
        cache = Cache(model, shape, blocks, size, seqs, self.max_model_len, extra)
        proposer = self._make_proposer(options, cache)
        attention = register(self.device.type, self._dtype, shape)
        if extra is not None:
            extra.set_attn_implementation(attention)
        runner = Runner(
            model,
            attention,
            cache,
            States(layers, seqs + 1, self._adapters),
            self._adapters,
            self._make_tower(),
            seqs,
            num_sampled=seqs * (1 + (proposer.num_speculative_tokens if proposer else 0)),
            max_num_mixed_tokens=passes.max_num_mixed_tokens,
            graphs=passes.graphs,
            compile=passes.compile,
            mtp=proposer if isinstance(proposer, MultiTokenPrediction) else None,
        )
        if passes.graphs and not self._is_trained:
            fuse(model)
        return BlockPool(blocks, size), runner, proposer

    def _make_unpaged(self, options: EngineOptions) -> tuple[BlockPool, Runner | OwnCaches, None]:
        """The caches of the model itself: one block holds a whole sequence."""
        if options.kv_cache_dtype != "auto":
            kind = self._model.config.model_type
            raise NpukitError(f"The cache of {kind} models cannot be in 8 bits: leave out --kv-cache-dtype.")
        if isinstance(self._draft, NextTokenLayer):
            kind = self._model.config.model_type
            raise NpukitError(f"Tokens of {kind} models are computed one by one: leave out --speculative-method.")
        runner = OwnCaches(self._model, self._adapters, self._make_tower())
        return BlockPool(options.max_num_seqs + 1, self.max_model_len), runner, None

    def _make_tower(self) -> Tower | None:
        return Tower(self._model, self._vision, self._adapters) if self._vision is not None else None

    def sleep(self, keep_cache: bool) -> None:
        """Prepare the model for training: restore its own attention and forget the prefix cache. Without `keep_cache`
        the cache's memory is released too, and the engine cannot be used again.
        """
        if not self.is_paged:
            return
        language_model(self._model).set_attn_implementation(self._own_attention)
        self._scheduler.reset_prefix_cache()
        self._addresses = self._places_of_weights()
        if not keep_cache:
            self._runner.forget_graphs()
            release_cache(self._model)

    def wake_up(self) -> None:
        """Continue with the model's present weights."""
        self._model.eval()
        if isinstance(self._runner, Runner):
            self._runner.use_paged_attention()
            if self._places_of_weights() != self._addresses:  # a fused optimizer lays them out anew
                self._runner.forget_graphs()

    def _places_of_weights(self) -> list[int]:
        return [parameter.data_ptr() for parameter in self._model.parameters()]

    def warm_up(self) -> None:
        """Record graphs and compile kernels now rather than during the first requests."""
        if isinstance(self._draft, Engine):
            self._draft.warm_up()
        self._runner.warm_up()
        usual = {"temperature": 0.0}, {"temperature": 1.0}, {"top_p": 0.9}, {"top_k": 20, "top_p": 0.9}
        params = [SamplingParams(**settings, max_tokens=2) for settings in usual]  # type: ignore[arg-type]
        self.generate(Request((0,) * (3 + n), sampling) for n, sampling in enumerate(params))

    @property
    def adapters(self) -> list[str]:
        """The names of the adapters that requests can ask for."""
        return list(self._adapter_keys)

    def load_adapter(self, name: str, folder: Path) -> None:
        """Load a LoRA adapter that PEFT saved under a new name."""
        self.add_adapter(read_adapter(name, folder))

    def add_adapter(self, adapter: LoadedAdapter, replace: bool = False) -> None:
        """Add an adapter under its name. With `replace` it takes the place of one with the same name: requests that
        have started keep the old one. If the new one does not fit the model, the old one stays.
        """
        if adapter.name in self._adapter_keys and not replace:
            raise NpukitError(
                f"There is already an adapter named {adapter.name}: unload it first, or choose another name."
            )
        key = f"{self._num_loaded}:{adapter.name}"
        self._adapters.add(key, adapter)
        self._num_loaded += 1
        self._adapter_keys[adapter.name] = key
        self._drop_adapters()
        self._runner.forget_graphs()

    def unload_adapter(self, name: str) -> None:
        """Remove an adapter. Requests that use it are finished; new ones are refused."""
        if name not in self.adapters:
            raise NpukitError(f"There is no adapter {name}.")
        del self._adapter_keys[name]
        self._drop_adapters()

    def _drop_adapters(self) -> None:
        """Remove the adapters that no new request can use and no sequence uses any more."""
        used = {sequence.request.adapter for sequence in self._sequences.values()}
        for key in set(self._adapters.keys) - set(self._adapter_keys.values()) - used:
            self._adapters.remove(key)
            self._runner.forget_graphs()

    @property
    def is_idle(self) -> bool:
        """Whether nothing is left to do."""
        return not self._sequences and not self._ended and self._pending is None

    def add_request(self, request: Request) -> int:
        """Add a request; returns its id, which is in all its outputs."""
        check_request(request, self.max_model_len, self._num_embeddings, self._adapter_keys)
        if request.media is not None and not self._runner.sees:
            raise NpukitError(f"{self._model.config.model_type} models do not accept images here: send text only.")
        request_id = self._next_request_id
        self._next_request_id += 1
        max_tokens = request.sampling.max_tokens
        max_len = (
            min(self.max_model_len, len(request.prompt) + max_tokens) if max_tokens is not None else self.max_model_len
        )
        # An adapter's key is unique, also among adapters that had its name before: their caches are kept apart.
        key = self._adapter_keys[request.adapter] if request.adapter is not None else None
        cache_salt = key.encode() if key else b""
        groups = self._groups(request)
        if self._vision is not None and self._vision.prefix:  # every token sees the whole prompt
            media = request.media.digest(0, len(request.prompt)) if request.media is not None else b""
            cache_salt += hashlib.sha256(repr(request.prompt).encode() + media).digest()
        sequence = Sequence(
            request_id, replace(request, adapter=key), list(request.prompt), max_len, cache_salt, groups=groups
        )
        self._sequences[request_id] = sequence
        self._scheduler.waiting.append(sequence)
        self._prompt_tokens += len(request.prompt)
        return request_id

    def _groups(self, request: Request) -> npt.NDArray[np.int64] | None:
        """Which tokens of a prompt see each other, if any do."""
        if self._vision is None:
            return None
        token = getattr(self._model.config, f"{self._vision.kind}_token_id")
        is_image = np.asarray(request.prompt) == token
        groups = self._vision.groups(self._model.config, is_image, len(is_image))
        return groups if groups is not None and (groups >= 0).any() else None

    def abort_request(self, request_id: int) -> None:
        """Abort a request; its last output says so. Does nothing if it has finished."""
        if sequence := self._sequences.get(request_id):
            self._ended.append(self._finish(sequence, None, "cancelled"))

    def step(self) -> list[Output]:
        """Run one step; returns the outputs that have arrived, of this step or of the one before."""
        previous = self._pending
        if previous is not None and not self._can_schedule_ahead():
            outputs = self._process_output(previous)
            self._launch()
        else:
            self._launch()
            outputs = self._process_output(previous) if previous is not None else []
        ended, self._ended = self._ended, []
        return ended + outputs

    def generate(
        self, requests: Iterable[Request], on_output: Callable[[Output], None] | None = None
    ) -> list[RequestOutput]:
        """Answer all requests and return the answers in their order; `on_output` is called with each output."""
        request_ids = [self.add_request(request) for request in requests]
        tokens: dict[int, list[Token]] = {request_id: [] for request_id in request_ids}
        last: dict[int, Output] = {}
        prompts: dict[int, tuple[Token, ...]] = {}
        while not self.is_idle:
            for output in self.step():
                if on_output is not None:
                    on_output(output)
                if output.token is not None:
                    tokens[output.request_id].append(output.token)
                if output.prompt_logprobs:
                    prompts[output.request_id] = output.prompt_logprobs
                if output.finish_reason:
                    last[output.request_id] = output
        return [
            RequestOutput(
                tuple(tokens[request_id]),
                last[request_id].finish_reason or "error",
                prompts.get(request_id, ()),
                last[request_id].error,
            )
            for request_id in request_ids
        ]

    def stats(self) -> Stats:
        """Figures of its load and its work so far."""
        scheduler = self._scheduler
        return Stats(
            running=len(scheduler.running),
            waiting=len(scheduler.waiting),
            blocks=scheduler.pool.num_blocks - 1,
            blocks_used=scheduler.pool.num_used,
            prompt_tokens=self._prompt_tokens,
            cached_tokens=scheduler.cached_tokens,
            generated_tokens=self._generated_tokens,
            draft_tokens=self._draft_tokens,
            accepted_tokens=self._accepted_tokens,
            preemptions=scheduler.preemptions,
        )

    @property
    def num_cache_tokens(self) -> int:
        """How many tokens the cache holds."""
        pool = self._scheduler.pool
        return (pool.num_blocks - 1) * pool.block_size

    def _can_schedule_ahead(self) -> bool:
        """Not while a sequence waits for its last token on the host: it would miss every other step."""
        return self._async_scheduling and not any(sequence.waits_for_tokens for sequence in self._scheduler.running)

    def _launch(self) -> None:
        scheduled = self._scheduler.schedule()
        self._pending = self._runner.launch(scheduled) if scheduled.decodes or scheduled.chunks else None

    def _process_output(self, step: PendingStep) -> list[Output]:
        """Wait for a step and append its tokens to their sequences."""
        outputs = []
        for sequence, tokens in zip(step.scheduled.sampled, step.tokens(), strict=True):
            sequence.num_in_flight -= 1
            accepted = sequence.accept(tokens)
            self._draft_tokens += len(tokens) - 1
            self._accepted_tokens += len(accepted) - 1
            for token in accepted:
                if sequence.finish_reason is None:  # tokens after its end are dropped
                    outputs.append(self._append_or_fail(sequence, token))
        return outputs

    def _append_or_fail(self, sequence: Sequence, token: Token) -> Output:
        """An error in one sequence, when its token was sampled or now, ends that sequence alone."""
        error = sequence.error
        try:  # not a context of its own, which every token would make
            if error is None:
                return self._append_token(sequence, token)
        except Exception as now:
            error = now
        if not isinstance(error, NpukitError):
            log.error("A request failed", exc_info=error)
        return self._finish(sequence, None, "error", error=error)

    def _append_token(self, sequence: Sequence, token: Token) -> Output:
        is_first = len(sequence.tokens) == len(sequence.request.prompt)
        sequence.tokens.append(token.id)
        self._generated_tokens += 1
        if len(sequence.tokens) % self._scheduler.pool.block_size <= 1:  # a block may be full now
            self._scheduler.cache_full_blocks(sequence)
        is_end = token.id in sequence.request.sampling.end_tokens
        if (grammar := sequence.request.grammar) is not None:
            is_end = is_end or grammar.is_finished  # nothing may follow, even if the request ignores end tokens
            grammar.accept(token.id)
        prompt = tuple(sequence.prompt_logprobs) if is_first else ()
        if is_end:
            return self._finish(sequence, token, "stop", prompt)
        if len(sequence.tokens) >= sequence.max_len:
            return self._finish(sequence, token, "length", prompt)
        return Output(sequence.request_id, token, prompt_logprobs=prompt)

    def _finish(
        self,
        sequence: Sequence,
        token: Token | None,
        finish_reason: FinishReason,
        prompt_logprobs: tuple[Token, ...] = (),
        error: Exception | None = None,
    ) -> Output:
        sequence.finish_reason = finish_reason
        self._scheduler.finish(sequence)
        del self._sequences[sequence.request_id]
        if len(self._adapters.keys) > len(self._adapter_keys):
            self._drop_adapters()
        return Output(sequence.request_id, token, finish_reason, prompt_logprobs, error)


def _max_model_len(model: Any, options: EngineOptions) -> int:
    """The longest sequence, which the model's own limit bounds."""
    own = getattr(model.config.get_text_config(), "max_position_embeddings", None) or UNLIMITED
    return int(min(options.max_model_len or own, own))


def _can_page(model: Any, max_model_len: int) -> bool:
    """Whether the paged cache supports the model's attention."""
    config, vision = families.as_mapping(model.config), families.vision_of(model.config)
    if vision is not None and vision.crosses:
        return False
    family = families.of(model.config)
    window = family.window(config)
    if abilities(model.device).torch_npu and window is not None and window < max_model_len:
        return False  # the NPU's decoding kernel has no window
    if family.attention == "unknown":
        options = EngineOptions(
            max_model_len=TOKENS,
            max_num_seqs=2,
            max_num_batched_tokens=16,
            num_blocks=12,
            enforce_eager=True,
            compile=False,
            paged=True,
        )
        return agrees(model, lambda requests: Engine(model, options).generate(requests))
    return family.is_paged and _has_layers_of(family.attention, model)


def _has_layers_of(attention: str, model: Any) -> bool:
    """Whether the engine has what the layers of such a model keep. Older releases of transformers keep states
    elsewhere, and unpack latent vectors earlier.
    """
    if attention == "latent":
        return has_latent_attention(model)
    if attention != "mixed":
        return True
    try:
        return bool(state_layers(model))
    except (AttributeError, ImportError, TypeError):
        return False
