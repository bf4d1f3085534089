"""Carries the quality guard's findings from vLLM's workers to its metrics. Workers are other processes than the one
that serves /metrics, and vLLM carries no plug-in's figures between them. So each worker writes a small file into a
folder that all processes of a server know by their environment. A Prometheus collector reads the files when it is
asked."""

from __future__ import annotations

import atexit
import json
import os
import pathlib
import shutil
import tempfile
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # registering the plug-in must not import NumPy or PyTorch
    from kvant.paged.quality_guard import GuardReport

FOLDER = "KVANT_GUARD_FOLDER"  # the first process of a server sets it
METRICS = {
    "kvant_guard_attention_error": "Relative error of attention outputs by quantization, root mean square over layers",
    "kvant_guard_worst_layer_error": "That of the layer where it is largest",
    "kvant_guard_worst_layer": "Which layer that is",
    "kvant_guard_estimated_divergence_nats": "About what quantization costs in KL divergence, in nats a token",
    "kvant_guard_checks": "How often each layer has been checked, at least"}


def prepare() -> None:
    """Runs in each of vLLM's processes, as early as possible."""
    if FOLDER not in os.environ:
        os.environ[FOLDER] = tempfile.mkdtemp(prefix="kvant-guard-")
        atexit.register(_remove, os.environ[FOLDER], os.getpid())
    try:
        from prometheus_client import REGISTRY
    except ImportError:  # this process serves no metrics
        return
    REGISTRY.register(Collector())


def _remove(folder: str, creator: int) -> None:
    if os.getpid() == creator:  # a forked process must not remove the folder
        shutil.rmtree(folder, ignore_errors=True)


class Collector:
    def describe(self) -> list:
        return []

    def collect(self) -> Iterator:
        from prometheus_client.core import GaugeMetricFamily

        found = sorted(_read())
        for name, text in METRICS.items() if found else ():
            family = GaugeMetricFamily(name, text, labels=["rank"])
            for rank, values in found:
                family.add_metric([rank], values[name])
            yield family


def _read() -> Iterator[tuple[str, dict[str, float]]]:
    for path in pathlib.Path(os.environ[FOLDER]).glob("*.json"):
        try:
            yield path.stem, json.loads(path.read_text())
        except (OSError, ValueError):  # the server is ending
            pass


def reporter(rank: int, say: Callable[[str], None], warn: Callable[[str], None]) -> Callable[[GuardReport], None]:
    """Returns the function that a worker's guard reports to. rank: of tensor parallelism. say, warn: print a line in
    the log, each line at most once."""
    said = set()

    def once(how: Callable[[str], None], line: str) -> None:
        if how not in said:
            said.add(how)
            how(line)

    def report(found: GuardReport) -> None:
        values = (found.error, found.errors[found.worst_layer], found.worst_layer, found.nats, found.checks)
        path = pathlib.Path(os.environ[FOLDER]) / f"{rank}.json"
        try:
            part = path.with_suffix(".part")
            part.write_text(json.dumps(dict(zip(METRICS, map(float, values)))))
            part.replace(path)
        except OSError:  # another machine's folder, or a server that is ending
            pass
        if found.checks:
            once(say, f"kvant: guard: attention is off by {100 * found.error:.1f} % of itself, {100 * values[1]:.1f} % in layer "
                      f"{found.worst_layer}, the worst; about {found.nats:.2g} nats a token")
        if found.warning:
            once(warn, f"kvant: guard: {found.warning}")

    return report
