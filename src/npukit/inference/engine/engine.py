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
from npukit.inference.engine.cache import Cache, CacheShape, release_cache
from npukit.inference.engine.fused import fuse
from npukit.inference.engine.graphs import can_record
from npukit.inference.engine.own_caches import OwnCaches
from npukit.inference.engine.pool import BlockPool
from npukit.inference.engine.request import (
    Finish,
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
from npukit.inference.engine.scheduler import CHEAP, CHEAP_ON_HOST, Scheduler
from npukit.inference.engine.sequence import Sequence
from npukit.inference.engine.sizes import blocks_that_fit
from npukit.inference.engine.speculative import DraftModel, PromptLookup, Proposer
from npukit.inference.engine.tower import Tower
from npukit.inference.engine.trial import TOKENS, agrees
from npukit.inference.engine.w8a8 import quantize
from npukit.launch.abilities import abilities
from npukit.llm import families
from npukit.llm.config.use import EngineOptions
from npukit.llm.models.experts import use_grouped_experts
from npukit.llm.models.vision import language_model

log = logging.getLogger(__name__)
UNLIMITED = 8192  # tokens of a text where nothing in the model limits them


class Engine:
    """Answers many requests at once with one model. `trained_in` is for a model that is trained between answers: the
    type that it computes in. Then nothing of it is replaced, and between answers it is put to `sleep`. The engine of a
    smaller model, `draft`, guesses tokens for it.

    >>> engine = Engine(model, EngineOptions(max_model_len=4096))
    >>> engine.generate([Request((1, 2, 3), SamplingParams(temperature=0, max_tokens=2))])[0].ids
    [15, 7]
    """

    def __init__(
        self,
        model: Any,
        options: EngineOptions | None = None,
        trained_in: torch.dtype | None = None,
        draft: Engine | None = None,
    ) -> None:
        options = options or EngineOptions()
        if options.quantization not in (None, "w8a8"):
            raise NpukitError(f"npukit's engine does not know the quantization {options.quantization}: use w8a8.")
        model.eval()
        self._model, self._own_attention = model, language_model(model).config._attn_implementation
        self._dtype, self._is_trained = trained_in or model.dtype, trained_in is not None
        self.device, self._vision = model.device, families.vision_of(model.config)
        use_grouped_experts(model)
        self.words = model.get_output_embeddings().weight.shape[0]
        self._input_words = model.get_input_embeddings().weight.shape[0]  # more than `words` where an image has a token
        made_for = getattr(model.config.get_text_config(), "max_position_embeddings", None)
        self.longest = min(options.max_model_len or made_for or UNLIMITED, made_for or UNLIMITED)
        self.is_paged = options.paged if options.paged is not None else _can_page(model, self.longest)
        if options.quantization:
            quantize(model)
        self._adapters, self._loads = Adapters(model), 0
        self._newest: dict[str, str] = {}  # the key of each adapter that requests can ask for, by its name
        self._draft, proposer = draft, self._make_proposer(options, draft)
        prefill = options.max_num_batched_tokens or (8192 if abilities(self.device).own_memory else 512)
        if self.is_paged:
            graphs = not options.enforce_eager and can_record(model, self._dtype)
            mixed = options.max_num_mixed_tokens
            mixed = mixed if mixed is not None else 1024 if graphs else 0
            picks = options.max_num_seqs * (1 + (proposer.num_speculative_tokens if proposer else 0))
            pool, self._runner = self._make_paged(model, options, graphs, mixed, picks)
            cheap = CHEAP if abilities(self.device).own_memory else CHEAP_ON_HOST
            self._scheduler = Scheduler(
                pool, options.max_num_seqs, prefill, options.enable_prefix_caching, mixed, proposer, cheap
            )
        else:  # a block is the whole of a sequence
            self._runner = OwnCaches(model, self._adapters, self._make_tower(model))
            seqs = options.max_num_seqs
            self._scheduler = Scheduler(BlockPool(seqs + 1, self.longest), seqs, prefill, reuse=False)
        ahead = abilities(self.device).own_memory if options.async_scheduling is None else options.async_scheduling
        self._ahead = ahead and self.is_paged and proposer is None
        self._launched: PendingStep | None = None
        self._sequences: dict[int, Sequence] = {}
        self._ended: list[Output] = []
        self._next_number = self._prompt_tokens = self._generated_tokens = 0
        self._guessed_tokens = self._confirmed_tokens = 0

    def _make_proposer(self, options: EngineOptions, draft: Engine | None) -> Proposer | None:
        """What guesses tokens, if anything is to."""
        if draft is not None:
            words = min(self.words, draft.words)
            return DraftModel(draft.generate, draft.longest, words, options.num_speculative_tokens)
        return PromptLookup(options.prompt_lookup) if options.prompt_lookup else None

    def _make_paged(
        self, model: Any, options: EngineOptions, graphs: bool, mixed: int, picks: int
    ) -> tuple[BlockPool, Runner | OwnCaches]:
        size, seqs = options.block_size or abilities(self.device).block_size, options.max_num_seqs
        shape = CacheShape.of(model, self._dtype)
        blocks = options.num_blocks or blocks_that_fit(
            shape, size, seqs, self.longest, options.gpu_memory_utilization, self.device
        )
        self.longest = min(self.longest, (blocks - 1) * size)
        cache = Cache(model, shape, blocks, size, seqs, self.longest)
        compile = options.compile if options.compile is not None else graphs and abilities(self.device).compiles
        attention = register(self.device.type, self._dtype)
        tower = self._make_tower(model)
        runner = Runner(model, attention, cache, self._adapters, tower, seqs, picks, mixed, graphs, compile)
        if graphs and not self._is_trained:
            fuse(model)
        return BlockPool(blocks, size), runner

    def _make_tower(self, model: Any) -> Tower | None:
        return Tower(model, self._vision, self._adapters) if self._vision is not None else None

    def sleep(self, keep_cache: bool) -> None:
        """Let the model be trained: it has its own attention again, and what is in the cache is forgotten. Without
        `keep_cache` its memory is given back too, and this engine is done.
        """
        if not self.is_paged:
            return
        language_model(self._model).set_attn_implementation(self._own_attention)
        self._scheduler.forget_prefixes()
        self._addresses = self._places_of_weights()
        if not keep_cache:
            self._runner.forget_graphs()
            release_cache(self._model)

    def wake_up(self) -> None:
        """Go on with the weights that the model has now."""
        self._model.eval()
        if isinstance(self._runner, Runner):
            self._runner.use_paged_attention()
            if self._places_of_weights() != self._addresses:  # a fused optimizer lays them out anew
                self._runner.forget_graphs()

    def _places_of_weights(self) -> list[int]:
        return [parameter.data_ptr() for parameter in self._model.parameters()]

    def warm_up(self) -> None:
        """Do before the first request what would make some of the first ones wait."""
        if self._draft is not None:
            self._draft.warm_up()
        self._runner.warm_up()
        usual = {"temperature": 0.0}, {"temperature": 1.0}, {"top_p": 0.9}, {"top_k": 20, "top_p": 0.9}
        params = [SamplingParams(**settings, max_tokens=2) for settings in usual]  # type: ignore[arg-type]
        self.generate(Request((0,) * (3 + n), sampling) for n, sampling in enumerate(params))

    @property
    def adapters(self) -> list[str]:
        """The names of the adapters that requests can ask for."""
        return list(self._newest)

    def load_adapter(self, name: str, folder: Path) -> None:
        """Read a LoRA adapter that PEFT saved, and make it known under a name; a name that is taken is refused."""
        self.add_adapter(read_adapter(name, folder))

    def add_adapter(self, adapter: LoadedAdapter, replace: bool = False) -> None:
        """Make an adapter known under its name. With `replace` it takes the place of one of that name, which answers
        that have begun with it keep; if it does not fit, the old one stays.
        """
        if adapter.name in self._newest and not replace:
            raise NpukitError(f"There is an adapter {adapter.name} already: unload it first, or choose another name.")
        key = f"{self._loads}:{adapter.name}"
        self._adapters.add(key, adapter)
        self._loads += 1
        self._newest[adapter.name] = key
        self._drop_adapters()
        self._runner.forget_graphs()

    def unload_adapter(self, name: str) -> None:
        """Forget an adapter. Requests that have it are answered to their end; new ones are refused at once."""
        if name not in self.adapters:
            raise NpukitError(f"There is no adapter {name}.")
        del self._newest[name]
        self._drop_adapters()

    def _drop_adapters(self) -> None:
        """Forget those that no new request can ask for once no sequence uses them."""
        used = {sequence.request.adapter for sequence in self._sequences.values()}
        for key in set(self._adapters.keys) - set(self._newest.values()) - used:
            self._adapters.remove(key)
            self._runner.forget_graphs()

    @property
    def is_idle(self) -> bool:
        """Whether nothing is left to do."""
        return not self._sequences and not self._ended and self._launched is None

    def add(self, request: Request) -> int:
        """Take a request; its number is in every output of it."""
        check_request(request, self.longest, self._input_words, self._newest)
        if request.multimodal is not None and not self._runner.sees:
            raise NpukitError(f"{self._model.config.model_type} models are not given pictures here: send text only.")
        number = self._next_number
        self._next_number += 1
        wanted = request.sampling.max_tokens
        limit = min(self.longest, len(request.prompt) + wanted) if wanted is not None else self.longest
        # The cache of an adapter is set apart by its key, also from one that had its name before.
        key = self._newest[request.adapter] if request.adapter is not None else None
        root = key.encode() if key else b""
        groups = self._groups(request)
        if self._vision is not None and self._vision.prefix:  # what is computed depends on the whole prompt
            seen = request.multimodal.digest(0, len(request.prompt)) if request.multimodal is not None else b""
            root += hashlib.sha256(repr(request.prompt).encode() + seen).digest()
        sequence = Sequence(
            number, replace(request, adapter=key), list(request.prompt), limit, root=root, groups=groups
        )
        self._sequences[number] = sequence
        self._scheduler.waiting.append(sequence)
        self._prompt_tokens += len(request.prompt)
        return number

    def _groups(self, request: Request) -> npt.NDArray[np.int64] | None:
        """Which tokens of a prompt see each other, if any do."""
        if self._vision is None:
            return None
        token = getattr(self._model.config, f"{self._vision.kind}_token_id")
        is_image = np.asarray(request.prompt) == token
        groups = self._vision.groups(is_image, len(is_image))
        return groups if groups is not None and (groups >= 0).any() else None

    def cancel(self, number: int) -> None:
        """Give up a request; its last output says so. One that has ended already is left alone."""
        if sequence := self._sequences.get(number):
            self._ended.append(self._finish(sequence, None, "cancelled"))

    def step(self) -> list[Output]:
        """Go on by one step, and say which tokens have come of it and of the steps before."""
        before = self._launched
        if before is not None and not self._can_go_ahead():
            outputs = self._accept(before)
            self._launch()
        else:
            self._launch()
            outputs = self._accept(before) if before is not None else []
        ended, self._ended = self._ended, []
        return ended + outputs

    def generate(
        self, requests: Iterable[Request], on_output: Callable[[Output], None] | None = None
    ) -> list[RequestOutput]:
        """Answer all requests, in their order; `on_output` gets each output as it comes."""
        numbers = [self.add(request) for request in requests]
        tokens: dict[int, list[Token]] = {number: [] for number in numbers}
        last: dict[int, Output] = {}
        prompts: dict[int, tuple[Token, ...]] = {}
        while not self.is_idle:
            for output in self.step():
                if on_output is not None:
                    on_output(output)
                if output.token is not None:
                    tokens[output.number].append(output.token)
                if output.prompt:
                    prompts[output.number] = output.prompt
                if output.finish:
                    last[output.number] = output
        return [
            RequestOutput(
                tuple(tokens[number]), last[number].finish or "error", prompts.get(number, ()), last[number].error
            )
            for number in numbers
        ]

    def stats(self) -> Stats:
        """How busy it is."""
        scheduler = self._scheduler
        return Stats(
            running=len(scheduler.running),
            waiting=len(scheduler.waiting),
            blocks=scheduler.pool.count - 1,
            blocks_used=scheduler.pool.used,
            prompt_tokens=self._prompt_tokens,
            reused_tokens=scheduler.reused_tokens,
            generated_tokens=self._generated_tokens,
            guessed_tokens=self._guessed_tokens,
            confirmed_tokens=self._confirmed_tokens,
            preemptions=scheduler.preemptions,
        )

    def _can_go_ahead(self) -> bool:
        """Not while a sequence's next token depends on the one on its way: it would miss every other step."""
        return self._ahead and not any(sequence.waits_for_tokens for sequence in self._scheduler.running)

    def _launch(self) -> None:
        step = self._scheduler.next()
        self._launched = self._runner.launch(step) if step.decodes or step.chunks else None

    def _accept(self, launched: PendingStep) -> list[Output]:
        """Take in what a step has generated."""
        outputs = []
        for sequence, tokens in zip(launched.step.sampled, launched.tokens(), strict=True):
            sequence.launches -= 1
            confirmed = sequence.confirm(tokens)
            self._guessed_tokens += len(tokens) - 1
            self._confirmed_tokens += len(confirmed) - 1
            for token in confirmed:
                if sequence.finish is None:  # what came after its end is dropped
                    outputs.append(self._take_or_fail(sequence, token))
        return outputs

    def _take_or_fail(self, sequence: Sequence, token: Token) -> Output:
        """An error in one sequence, while its token was chosen or now, ends that sequence alone."""
        with sequence.errors_kept():
            if sequence.error is None:
                return self._take(sequence, token)
        error = sequence.error
        if not isinstance(error, NpukitError):
            log.error("A request failed", exc_info=error)
        return self._finish(sequence, None, "error", error=error)

    def _take(self, sequence: Sequence, token: Token) -> Output:
        is_first = len(sequence.tokens) == len(sequence.request.prompt)
        sequence.tokens.append(token.id)
        self._generated_tokens += 1
        if len(sequence.tokens) % self._scheduler.pool.size <= 1:  # a block may have become full
            self._scheduler.remember(sequence)
        is_end = token.id in sequence.request.sampling.end_tokens
        if (grammar := sequence.request.grammar) is not None:
            is_end = is_end or grammar.is_finished  # then only an end is allowed, even if the request ignores it
            grammar.accept(token.id)
        prompt = tuple(sequence.prompt) if is_first else ()
        if is_end:
            return self._finish(sequence, token, "stop", prompt)
        if len(sequence.tokens) >= sequence.limit:
            return self._finish(sequence, token, "length", prompt)
        return Output(sequence.number, token, prompt=prompt)

    def _finish(
        self,
        sequence: Sequence,
        token: Token | None,
        finish: Finish,
        prompt: tuple[Token, ...] = (),
        error: Exception | None = None,
    ) -> Output:
        sequence.finish = finish
        self._scheduler.end(sequence)
        del self._sequences[sequence.number]
        if len(self._adapters.keys) > len(self._newest):
            self._drop_adapters()
        return Output(sequence.number, token, finish, prompt, error)


def _can_page(model: Any, longest: int) -> bool:
    """Whether the model's attention is one that the paged cache computes."""
    config, vision = families.as_mapping(model.config), families.vision_of(model.config)
    if vision is not None and vision.crosses:
        return False
    family = families.of(model.config)
    window = family.window(config)
    if abilities(model.device).torch_npu and window is not None and window < longest:
        return False  # the NPU's kernel for decoding looks back over everything
    if family.attention == "unknown":
        size = EngineOptions(
            max_model_len=TOKENS, max_num_seqs=2, num_blocks=12, enforce_eager=True, compile=False, paged=True
        )
        return agrees(model, lambda requests: Engine(model, size).generate(requests))
    return family.attention == "plain" and family.plain_logits
