"""Counts of what was served, as the plain text that Prometheus reads."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping

_BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Metrics:
    """Added to on the event loop only, so without a lock."""

    def __init__(self) -> None:
        self._requests: Counter[tuple[str, str, int]] = Counter()
        self._jobs: Counter[tuple[str, str]] = Counter()
        self._below: Counter[float] = Counter()
        self._seconds = 0.0
        self._answered = 0
        self._pictures = 0
        self._unreadable = 0

    def request(self, method: str, path: str, status: int) -> None:
        """`path` is the route's own, not the client's: otherwise a client could fill the memory with names."""
        self._requests[method, path, status] += 1

    def prediction(self, seconds: float, pictures: int, unreadable: int) -> None:
        self._seconds += seconds
        self._answered += 1
        self._pictures += pictures
        self._unreadable += unreadable
        self._below.update(_BOUNDS[bisect_left(_BOUNDS, seconds) :])

    def job(self, kind: str, state: str) -> None:
        self._jobs[kind, state] += 1

    def text(self, now: Mapping[str, tuple[str, float]]) -> str:
        """Everything counted, and `now`: name -> (what it is, value) of what can go up and down."""
        lines = _family("smope_requests_total", "counter", "Requests by method, route and status.")
        lines += [
            f'smope_requests_total{{method="{_quoted(method)}",route="{_quoted(path)}",status="{status}"}} {count}'
            for (method, path, status), count in sorted(self._requests.items())
        ]
        lines += _family("smope_predict_seconds", "histogram", "Time from a whole upload to its answer.")
        lines += [f'smope_predict_seconds_bucket{{le="{bound}"}} {self._below[bound]}' for bound in _BOUNDS]
        lines += [f'smope_predict_seconds_bucket{{le="+Inf"}} {self._answered}']
        lines += [f"smope_predict_seconds_sum {self._seconds:.6f}", f"smope_predict_seconds_count {self._answered}"]
        lines += [*_family("smope_pictures_total", "counter", "Pictures answered."), f"smope_pictures_total {self._pictures}"]
        lines += _family("smope_unreadable_total", "counter", "Files that were no readable picture.")
        lines += [f"smope_unreadable_total {self._unreadable}"]
        lines += _family("smope_changes_total", "counter", "Changes to the model, by kind and how they ended.")
        lines += [f'smope_changes_total{{kind="{kind}",state="{state}"}} {n}' for (kind, state), n in sorted(self._jobs.items())]
        for name, (what, value) in now.items():
            lines += [*_family(f"smope_{name}", "gauge", what), f"smope_{name} {value:g}"]
        return "\n".join(lines) + "\n"


def _family(name: str, kind: str, what: str) -> list[str]:
    return [f"# HELP {name} {what}", f"# TYPE {name} {kind}"]


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
