"""Figures for Prometheus. Label values come from closed sets: operations, statuses, boot modes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from cellbox._version import __version__

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

    from cellbox.control.control import Control

_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Metrics:
    """One server's metrics, in a registry of its own."""

    def __init__(self, control: Control) -> None:
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "cellbox_http_requests", "Requests answered.", ["operation", "status"], registry=self._registry
        )
        self._seconds = Histogram(
            "cellbox_http_request_seconds",
            "From a request's arrival to the end of its answer.",
            ["operation"],
            buckets=_BUCKETS,
            registry=self._registry,
        )
        self._counters: dict[tuple[str, int], Counter] = {}
        self._histograms: dict[str, Histogram] = {}
        self._in_progress = Gauge("cellbox_http_requests_in_progress", "Requests in progress.", registry=self._registry)
        self._in_progress.set_function(lambda: self.in_progress)
        self.in_progress = 0
        info = Gauge("cellbox_info", "What runs here.", ["version"], registry=self._registry)
        info.labels(__version__).set(1)
        self._registry.register(_Sandboxes(control))

    def observe(self, operation: str, status: int, seconds: float) -> None:
        """Count one answered request. Looking labels up costs more than counting, so the pairs are kept."""
        key = (operation, status)
        if (counter := self._counters.get(key)) is None:
            counter = self._counters[key] = self._requests.labels(operation, str(status))
        if (histogram := self._histograms.get(operation)) is None:
            histogram = self._histograms[operation] = self._seconds.labels(operation)
        counter.inc()
        histogram.observe(seconds)

    def text(self) -> bytes:
        """The exposition in Prometheus' text format."""
        return generate_latest(self._registry)


class _Sandboxes(Collector):
    def __init__(self, control: Control) -> None:
        self._control = control

    def collect(self) -> Iterable[Metric]:
        sandboxes = self._control.sandboxes
        yield GaugeMetricFamily("cellbox_sandboxes", "Sandboxes in memory now.", value=sandboxes.count())
        hibernated = sandboxes.count_hibernated()
        yield GaugeMetricFamily("cellbox_sandboxes_hibernated", "Sandboxes on disk now.", value=hibernated)
        count, size = self._control.snapshots.count()
        yield GaugeMetricFamily("cellbox_snapshots", "Snapshots that exist now.", value=count)
        yield GaugeMetricFamily("cellbox_snapshot_bytes", "What all snapshots take on disk.", value=size)
        boots = CounterMetricFamily("cellbox_sandbox_boots", "Sandboxes made, by boot mode.", labels=["mode"])
        for mode, count in sandboxes.boots.items():
            boots.add_metric([mode], count)
        yield boots
        pool = sandboxes.pool
        yield GaugeMetricFamily("cellbox_pool_ready", "Sandboxes that are ready before anyone asks.", value=pool.ready)
        creates = CounterMetricFamily(
            "cellbox_pool_sandboxes", "What became of creates and of ready sandboxes.", labels=["outcome"]
        )
        for outcome in ("hits", "misses", "unfit", "given_back"):
            creates.add_metric([outcome], pool.counts[outcome])
        yield creates
