"""Measures how much quantization changes attention while a server runs, as `kvant run --guard` does.

In some steps that begin prompts, the last token of a prompt attends twice in one layer. Layers take turns from check to
check. The token attends to the sink, the two newest sealed pages and the unquantized tokens. The first time it reads
the original keys and values, which the step still has, and the second time it reads the cache's. The check never waits
for the device: sums stay on the device until they are requested, and are read one step later."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from kvant import PAGE
from kvant.paged.block_layout import SIDES
from kvant.paged.device_arrays import DeviceArrays
from kvant.paged.model_cache import ModelCache
from kvant.paged.scratch_pages import ScratchPages
from kvant.paged.step_rules import PrefillPlan
from kvant.torch import Layer, Lengths

WATCHED_PAGES = 2
# The first checks of each layer run in every step that can check the layer. Later checks run in one of RARELY steps.
FIRST_CHECKS = 4
RARELY = 16
REPORT_SECONDS = 15.0
# The engine's guard warns at equal values (docs/guide/tune.md).
BROKEN_ERROR, BROKEN_RATIO = 0.7, 4.0
NATS_PER_SQUARED_ERROR, MANY_NATS = 2.2, 1.0
CHECKS_TO_WARN = 3  # checks of each layer


@dataclass(frozen=True)
class GuardReport:
    """Holds the findings for the layers that have been checked."""

    # Maps layers to the relative errors of their attention outputs.
    errors: dict[int, float]
    # Counts the checks of the layer that was checked least; 0 means that some layer has not been checked.
    checks: int

    @property
    def error(self) -> float:
        """Returns the root mean square of the errors over layers."""
        return float(np.sqrt(np.mean(np.square(list(self.errors.values())))))

    @property
    def worst_layer(self) -> int:
        return max(self.errors, key=self.errors.get)

    @property
    def nats(self) -> float:
        """Returns the recipe's approximate cost in KL divergence, accurate to an order of magnitude."""
        return NATS_PER_SQUARED_ERROR * self.error ** 2

    @property
    def warning(self) -> str | None:
        if self.checks < CHECKS_TO_WARN:
            return None
        middle, worst = float(np.median(list(self.errors.values()))), self.errors[self.worst_layer]
        if worst > BROKEN_ERROR and worst > BROKEN_RATIO * middle:
            return (f"attention of layer {self.worst_layer} has an error of {100 * worst:.0f} %, {worst / middle:.1f} times that "
                    "of the median layer: the layer is broken rather than coarse")
        if NATS_PER_SQUARED_ERROR * middle ** 2 > MANY_NATS:
            return f"attention has an error of {100 * middle:.0f} % in the median layer: the recipe is too coarse for this model"
        return None


@dataclass(frozen=True)
class Check:
    """Describes the check of one layer in one step."""

    guard: QualityGuard
    layer: int
    # Gives the prompt's last row among the step's prefilled rows.
    row: int
    # Holds scratch pages of the watched pages, of the incomplete page, and of the sink: int32 [1, pages].
    plain_pages: torch.Tensor
    sealed_blocks: torch.Tensor  # int32 [1, watched]
    plain_tokens: torch.Tensor  # int32 [1]
    sealed_pages: torch.Tensor  # int32 [1]
    # Gives the first watched token; earlier tokens of the check belong to the sink.
    first: int
    # Gives the end of the unquantized tokens after the watched pages.
    end: int

    def measure(self, scratch: ScratchPages, blocks: torch.Tensor, q: torch.Tensor, sink_logits: torch.Tensor | None) -> None:
        """Runs the check. `blocks` belong to the checked layer. q: BF16 or F16 [n_rows, n_heads, head_dim].
        model_state.attend explains sink_logits."""
        self.guard.measure(self, scratch, blocks, q, sink_logits)


class QualityGuard:
    def __init__(self, cache: ModelCache, n_layers: int, report: Callable[[GuardReport], None], layers_before: int = 0):
        """Calls report() every 15 seconds if there are new checks. Reports number layers from layers_before on."""
        self._layers_before = layers_before
        self._cache, self._n_layers, self._report = cache, n_layers, report
        # Holds the sum of squared differences, the sum of squares and the number of checks of each layer.
        self._sums = torch.zeros(n_layers, 3, dtype=torch.float32, device=cache.device)
        self._n_steps = self._n_checks = self._n_reported = 0
        self._last = time.monotonic()
        # Holds the sums while they are copied to the host.
        self._copy: torch.Tensor | None = None
        self._arrived: torch.cuda.Event | None = None

    def choose(self, plan: PrefillPlan, block_table: torch.Tensor) -> Check | None:
        """Chooses what to check in a step. block_table: int32 [prefilled requests, pages]."""
        n_full = (plan.computed + plan.query_lens) // PAGE
        request = int(np.argmax(np.where(plan.computed == 0, n_full, 0)))
        if plan.computed[request] > 0 or n_full[request] == 0:
            return None
        self._n_steps += 1
        if self._n_steps > FIRST_CHECKS * self._n_layers and self._n_steps % RARELY != 0:
            return None
        layer, self._n_checks = self._n_checks % self._n_layers, self._n_checks + 1
        n_full, n_tokens, piece = int(n_full[request]), int(plan.query_lens[request]), int(plan.first_pieces[request])
        watched = np.arange(max(n_full - WATCHED_PAGES, 0), n_full)
        n_unsealed, n_sink = n_tokens - n_full * PAGE, self._cache.layout.sink_tokens
        plain = [*(piece + watched), *([piece + n_full] if n_unsealed else []), piece]
        arrays = DeviceArrays({"plain": np.array([plain]), "watched": watched, "n_plain": np.array([len(plain) * PAGE]),
                               "n_sealed": np.array([len(watched)])}, self._cache.device)
        return Check(self, layer, int(plan.query_lens[:request + 1].sum()) - 1, arrays["plain"],
                     block_table[request, arrays["watched"].long()][None].contiguous(), arrays["n_plain"], arrays["n_sealed"],
                     n_sink if watched[0] == 0 else 0, len(watched) * PAGE + n_unsealed)

    def measure(self, check: Check, scratch: ScratchPages, blocks: torch.Tensor, q: torch.Tensor,
                sink_logits: torch.Tensor | None) -> None:
        cache, n_watched = self._cache, check.sealed_blocks.shape[1] * PAGE
        plain, sealed = (torch.empty(SIDES, 1, table.shape[1] * PAGE, cache.layout.n_kv_heads, cache.layout.head_dim,
                                     dtype=torch.bfloat16, device=cache.device) for table in (check.plain_pages, check.sealed_blocks))
        n_plain, shape = check.plain_pages.shape[1], cache.shape(1, blocks=blocks)
        cache.library.dequantize(shape, Lengths(tail_tokens=check.plain_tokens), Layer(tail=scratch.pages(check.plain_pages)), 0,
                                 n_plain, *plain)
        cache.library.dequantize(shape, Lengths(sealed_pages=check.sealed_pages),
                                 Layer(sealed=cache.sealed_pages(check.sealed_blocks, blocks), **cache.of_sealed(blocks)), 0,
                                 n_watched // PAGE, *sealed)
        sink = plain[:, 0, (n_plain - 1) * PAGE:][:, :cache.layout.sink_tokens]
        unsealed = plain[:, 0, n_watched:check.end]
        query = cache.queries(q[check.row:check.row + 1], blocks)[0].float().view(cache.layout.n_kv_heads, -1, cache.layout.head_dim)
        outputs = []
        for watched in (plain[:, 0, check.first:n_watched], sealed[:, 0, check.first:]):
            keys, values = torch.cat([sink, watched, unsealed], 1).float().transpose(1, 2)
            scores = cache.softmax_scale * query @ keys.transpose(1, 2)
            if cache.softcap:
                scores = cache.softcap * (scores / cache.softcap).tanh()
            if sink_logits is not None:
                scores = torch.cat([scores, sink_logits.view(*scores.shape[:2], 1)], 2)
            outputs.append(scores.softmax(-1)[..., :values.shape[1]] @ values)
        was, found = outputs
        sums = torch.stack([(found - was).square().sum(), was.square().sum(), was.new_ones(())])
        # vLLM warms up with steps that may contain any numbers, so sums that are not finite are left out. With
        # data parallelism, an engine without requests runs steps on block 0, where pages overwrite one another.
        self._sums[check.layer] += sums.where(sums.isfinite().all() & (check.sealed_blocks != 0).all(), 0)

    def tell(self) -> None:
        """Reports if it is time to report. Must be called before every step."""
        if self._copy is None:
            now = time.monotonic()
            if self._n_checks == self._n_reported or now < self._last + REPORT_SECONDS:
                return
            self._last, self._n_reported = now, self._n_checks
            is_cuda = self._sums.is_cuda
            self._copy = torch.empty(self._sums.shape, pin_memory=is_cuda)
            self._copy.copy_(self._sums, non_blocking=True)
            if is_cuda:
                self._arrived = torch.cuda.Event()
                self._arrived.record()
        if self._arrived is None or self._arrived.query():
            sums, self._copy, self._arrived = self._copy.numpy(), None, None
            checked = np.flatnonzero(sums[:, 2] > 0)
            errors = {self._layers_before + int(i): float(np.sqrt(sums[i, 0] / max(sums[i, 1], 1e-30))) for i in checked}
            if errors:
                self._report(GuardReport(errors, int(sums[:, 2].min())))
