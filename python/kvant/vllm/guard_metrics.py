"""Carries the quality guard's findings from vLLM's workers to its metrics. Workers are separate from the process that
serves /metrics, and vLLM transports no figures of plug-ins between them. Each worker therefore writes a small file into
a folder that all processes of a server know from their environment. A Prometheus collector reads the files at each
request."""

from __future__ import annotations

import atexit
import json
import os
import pathlib
import shutil
import tempfile
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

# Registering the plug-in must not import NumPy or PyTorch.
if TYPE_CHECKING:
    from kvant.paged.quality_guard import GuardReport

# The first process of a server sets the environment variable KVANT_GUARD_FOLDER.
FOLDER = "KVANT_GUARD_FOLDER"
METRICS = {
    "kvant_guard_attention_error": "Relative error of attention outputs by quantization, root mean square over layers",
    "kvant_guard_worst_layer_error": "Relative error of attention outputs in the worst layer",
    "kvant_guard_worst_layer": "Number of the worst layer",
    "kvant_guard_estimated_divergence_nats": "Estimated KL divergence by quantization, in nats per token",
    "kvant_guard_checks": "Minimum number of checks per layer"}


def prepare() -> None:
    """Prepares the folder and the collector. Each of vLLM's processes calls this function as early as possible."""
    if FOLDER not in os.environ:
        os.environ[FOLDER] = tempfile.mkdtemp(prefix="kvant-guard-")
        atexit.register(_remove, os.environ[FOLDER], os.getpid())
    try:
        from prometheus_client import REGISTRY
    # Without prometheus_client the process serves no metrics.
    except ImportError:
        return
    REGISTRY.register(Collector())


def _remove(folder: str, creator: int) -> None:
    # A forked process must not remove the folder.
    if os.getpid() == creator:
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
        # The server is ending.
        except (OSError, ValueError):
            pass


def number_of(parallel) -> int:
    """Returns the number of a worker among the workers of all engines of a server. `parallel` is vLLM's ParallelConfig,
    whose `rank` counts the workers of one engine."""
    of_engine = parallel.tensor_parallel_size * parallel.pipeline_parallel_size
    return getattr(parallel, "data_parallel_index", 0) * of_engine + parallel.rank % of_engine


def reporter(rank: int, say: Callable[[str], None], warn: Callable[[str], None]) -> Callable[[GuardReport], None]:
    """Returns the function to which a worker's guard reports. `rank` is the worker's number. say() and warn() print a
    line in the log; each line is printed at most once."""
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
        # The folder is on another machine, or the server is ending.
        except OSError:
            pass
        if found.checks:
            once(say, f"kvant: guard: relative error of attention {100 * found.error:.1f} %, {100 * values[1]:.1f} % in layer "
                      f"{found.worst_layer}, the worst; about {found.nats:.2g} nats per token")
        if found.warning:
            once(warn, f"kvant: guard: {found.warning}")

    return report
