"""Prometheus metrics, summed over the processes of a server."""

import os
from collections.abc import Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest, multiprocess

from looped_actor.serving.engine import Answer, Engine
from looped_actor.serving.options import METRICS_FOLDER

LOOP_BUCKETS = [2.0**n for n in range(8)]
SECOND_BUCKETS = [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0]


class Metrics:
    """Counters of the models of one process."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        about = {"labelnames": ("model",), "registry": self._registry}
        self.decisions = Counter("looped_actor_decisions", "Decisions.", **about)
        self.refused = Counter("looped_actor_refused", "Requests that found the queue full.", **about)
        self.loops = Histogram("looped_actor_loops", "Loops per decision.", buckets=LOOP_BUCKETS, **about)
        self.seconds = Histogram(
            "looped_actor_seconds", "Time from request to decision.", buckets=SECOND_BUCKETS, **about
        )
        self.waiting = Gauge(
            "looped_actor_waiting", "Requests without a slot.", multiprocess_mode="livesum", **about
        )

    def observe(self, model: str, answers: Sequence[Answer], engine: Engine) -> None:
        """Count the answers of one request."""
        self.decisions.labels(model).inc(len(answers))
        loops, seconds = self.loops.labels(model), self.seconds.labels(model)
        for answer in answers:
            loops.observe(answer.loops)
            seconds.observe(answer.seconds)
        self.waiting.labels(model).set(engine.waiting)

    def text(self) -> bytes:
        """Return the metrics of all processes in the text format of Prometheus."""
        if not os.environ.get(METRICS_FOLDER):
            return generate_latest(self._registry)
        registry = CollectorRegistry()
        multiprocess.MultiProcessCollector(registry)
        return generate_latest(registry)
