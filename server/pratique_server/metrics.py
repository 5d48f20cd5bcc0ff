"""What the server measures, in its own registry. Names come from the contract; engine gauges are read from the last engine
report when somebody scrapes, so that a scrape never waits for the engine."""

from collections.abc import Callable, Iterator
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from pratique_contract import Verdict, metric_names
from pratique_server.engine.protocol import EngineStats

# One extra series per series, that says when it began: nobody here reads it.
disable_created_metrics()  # type: ignore[no-untyped-call]

# Labels a client can choose would let it create series without bound: codes and endings are closed sets.
_LATENCY_BUCKETS: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
_TOKEN_BUCKETS: Final = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.08, 0.15, 0.3, 0.6, 1.2, 2.5, 5.0)
_DURATION_BUCKETS: Final = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)


class Metrics:
    """Counters and histograms of the API; ``exposition()`` is the scrape."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            metric_names.REQUESTS_TOTAL, "Requests by how they ended", ["ending", "code"], registry=self.registry
        )
        self.rejections = Counter(
            metric_names.REJECTIONS_TOTAL, "Requests refused before they ran", ["code"], registry=self.registry
        )
        self.stream_aborts = Counter(
            metric_names.STREAM_ABORTS_TOTAL, "Streams cut before their end", ["cause"], registry=self.registry
        )
        self.reverifications = Counter(
            metric_names.REVERIFICATIONS_TOTAL,
            "Idle re-verifications of the release by result",
            ["result"],
            registry=self.registry,
        )
        self.prompt_tokens = Counter(
            metric_names.PROMPT_TOKENS_TOTAL, "Prompt tokens of started requests", registry=self.registry
        )
        self.output_tokens = Counter(
            metric_names.GENERATION_TOKENS_TOTAL, "Output tokens generated", registry=self.registry
        )
        self.ttft = self._histogram(
            metric_names.TIME_TO_FIRST_TOKEN_SECONDS, "Arrival to first token", _LATENCY_BUCKETS
        )
        self.itl = self._histogram(
            metric_names.INTER_TOKEN_LATENCY_SECONDS, "Between successive output tokens", _TOKEN_BUCKETS
        )
        self.duration = self._histogram(
            metric_names.REQUEST_DURATION_SECONDS, "Arrival to last byte", _DURATION_BUCKETS
        )
        self.queue_time = self._histogram(
            metric_names.REQUEST_QUEUE_SECONDS, "Enqueued to first scheduled", _LATENCY_BUCKETS
        )
        self.prefill_time = self._histogram(
            metric_names.REQUEST_PREFILL_SECONDS, "First scheduled to first token", _LATENCY_BUCKETS
        )
        self.decode_time = self._histogram(
            metric_names.REQUEST_DECODE_SECONDS, "First to last token", _DURATION_BUCKETS
        )

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(name, text, buckets=buckets, registry=self.registry)

    def exposition(self) -> bytes:
        """Prometheus text format."""
        return generate_latest(self.registry)


class PodCollector(Collector):
    """Verdict, release and engine state as gauges, read at scrape time."""

    def __init__(self, *, verdict: Callable[[], Verdict], stats: Callable[[], EngineStats | None], model: str) -> None:
        self._verdict = verdict
        self._stats = stats
        self._model = model

    def collect(self) -> Iterator[Metric]:
        verdict = self._verdict()
        yield _gauge(
            metric_names.VERDICT, "1 for a passed verdict, else 0", float(verdict.passed), reason=str(verdict.reason)
        )
        if verdict.fingerprint is not None:
            yield _gauge(
                metric_names.RELEASE_INFO, "The release served", 1.0, fingerprint=verdict.fingerprint, model=self._model
            )
        failures = verdict.reverification.failures if verdict.reverification is not None else 0
        yield _gauge(
            metric_names.REVERIFICATION_FAILURES, "Idle re-verifications that failed in a row", float(failures)
        )
        stats = self._stats()
        if stats is not None:
            yield from self._engine_gauges(stats)

    def _engine_gauges(self, stats: EngineStats) -> Iterator[Metric]:
        usage = stats.blocks_used / stats.blocks_total if stats.blocks_total else 0.0
        values = {
            metric_names.REQUESTS_RUNNING: ("Requests being computed", float(stats.running)),
            metric_names.REQUESTS_WAITING: ("Requests in the engine's queue", float(stats.waiting)),
            metric_names.QUEUE_TOKENS: ("Prompt tokens in the engine's queue", float(stats.waiting_tokens)),
            metric_names.KV_CACHE_USAGE_RATIO: ("Used share of K/V blocks", usage),
            metric_names.ENGINE_EPOCH: ("Counts engine starts", float(stats.epoch)),
        }
        for name, (text, value) in values.items():
            yield _gauge(name, text, value)
            alias = metric_names.VLLM_ALIASES.get(name)
            if alias is not None:
                yield _gauge(alias, text, value, model_name=self._model)
        blocks = GaugeMetricFamily(metric_names.KV_BLOCKS, "K/V blocks by state", labels=["state"])
        for state in ("free", "cached", "used"):
            blocks.add_metric([state], float(getattr(stats, f"blocks_{state}")))
        yield blocks
        for name, text, count in (
            (metric_names.PREEMPTIONS_TOTAL, "Requests preempted", stats.preemptions),
            (metric_names.STALE_OUTPUTS_TOTAL, "Engine messages dropped as stale", stats.stale_outputs),
        ):
            yield CounterMetricFamily(name, text, value=float(count))


def _gauge(name: str, text: str, value: float, **labels: str) -> Metric:
    family = GaugeMetricFamily(name, text, labels=list(labels))
    family.add_metric(list(labels.values()), value)
    return family
