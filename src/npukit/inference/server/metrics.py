"""Figures for Prometheus, under vLLM's names, so that dashboards made for it work."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from npukit.inference.engine.request import Stats

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
TOKENS = tuple(2**power for power in range(18))
LABEL = ["model_name"]


class Metrics:
    """Counters of the requests of one server.

    >>> metrics = Metrics("qwen")
    >>> metrics.first_token.observe(0.12)
    >>> metrics.text(engine.stats())
    """

    def __init__(self, model: str) -> None:
        self._model = model
        self._registry = CollectorRegistry()
        self.first_token = self._histogram("time_to_first_token_seconds", "Time to the first token.", SECONDS)
        self.next_token = self._histogram("inter_token_latency_seconds", "Time between two tokens.", SECONDS)
        self.whole = self._histogram("e2e_request_latency_seconds", "Time of a whole answer.", SECONDS)
        self.prompt_length = self._histogram("request_prompt_tokens", "Tokens of a prompt.", TOKENS)
        self.answer_length = self._histogram("request_generation_tokens", "Tokens of an answer.", TOKENS)
        self._finished = Counter(
            "vllm:request_success", "Finished answers.", [*LABEL, "finished_reason"], registry=self._registry
        )
        self._refused = Counter(
            "npukit:requests_refused", "Requests answered with an error.", [*LABEL, "status"], registry=self._registry
        )

    def _histogram(self, name: str, meaning: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(f"vllm:{name}", meaning, LABEL, buckets=buckets, registry=self._registry).labels(self._model)

    def finished(self, reason: str) -> None:
        """Count a finished answer."""
        self._finished.labels(self._model, reason).inc()

    def refused(self, status: int) -> None:
        """Count a request that was answered with an error."""
        self._refused.labels(self._model, str(status)).inc()

    def text(self, stats: Stats) -> bytes:
        """All metrics in Prometheus' format."""
        engine = CollectorRegistry()
        engine.register(_Engine(stats, self._model))
        return generate_latest(engine) + generate_latest(self._registry)


class _Engine(Collector):
    def __init__(self, stats: Stats, model: str) -> None:
        self._stats, self._model = stats, model

    def collect(self) -> Iterator[Metric]:
        stats = self._stats
        used = stats.blocks_used / stats.blocks if stats.blocks else 0.0
        gauges = {
            "num_requests_running": (stats.running, "Answers that are being generated."),
            "num_requests_waiting": (stats.waiting, "Requests that wait for a place."),
            "kv_cache_usage_perc": (used, "Used share of the key/value cache; 1 is all of it."),
        }
        counters = {
            "prompt_tokens": (stats.prompt_tokens, "Tokens of prompts."),
            "generation_tokens": (stats.generated_tokens, "Generated tokens."),
            "spec_decode_num_draft_tokens": (stats.draft_tokens, "Tokens that speculative decoding guessed."),
            "spec_decode_num_accepted_tokens": (stats.accepted_tokens, "Guessed tokens that the model chose too."),
            "num_preemptions": (stats.preemptions, "Answers that were preempted and started again."),
            "prefix_cache_queries": (stats.prompt_tokens, "Tokens of prompts that were looked for in the cache."),
            "prefix_cache_hits": (stats.cached_tokens, "Tokens of prompts that were found in the cache."),
        }
        for family, figures in ((GaugeMetricFamily, gauges), (CounterMetricFamily, counters)):
            for name, (value, meaning) in figures.items():
                metric = family(f"vllm:{name}", meaning, labels=LABEL)
                metric.add_metric([self._model], value)
                yield metric
