"""Tells which of a model's layers a stage of pipeline parallelism has, and where kvant's cache is among them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

FULL = "full_attention"


@dataclass(frozen=True)
class Stages:
    """Describes all stages of a model. Without pipeline parallelism there is one stage."""

    # Holds the layers of each stage by their numbers in the model. The tuple is empty if there is one stage.
    layers: tuple[range, ...] = ()
    # Holds the number of each stage's layers that have kvant's cache.
    n_cached: tuple[int, ...] = ()
    # Gives the stage of this process.
    mine: int = 0

    @property
    def n_before(self) -> int:
        """Returns how many layers of earlier stages have kvant's cache."""
        return sum(self.n_cached[:self.mine])

    @property
    def text(self) -> str:
        return f" of stage {self.mine + 1} of {len(self.layers)}" if self.layers else ""

    def slices(self) -> Sequence[slice]:
        """Returns the layers of each stage as slices of something that has an entry per layer."""
        return [slice(x.start, x.stop) for x in self.layers] or [slice(None)]

    def check(self, n_layers: int) -> None:
        """Raises NotImplementedError if this stage does not have the number of layers that the other stages assume. All
        stages need blocks of one size, and each stage computes the size from these numbers."""
        if self.layers and n_layers != self.n_cached[self.mine]:
            raise NotImplementedError(f"kvant does not support pipeline parallelism for this model: stage {self.mine + 1} has {n_layers} "
                                      f"layers with kvant's cache, and the model's configuration says {self.n_cached[self.mine]}")


def stages_of(vllm_config) -> Stages:
    """Returns the stages. Raises NotImplementedError if a stage has no layer for kvant, because vLLM would then lay out
    the stage's blocks in another way."""
    parallel = vllm_config.parallel_config
    n_stages = parallel.pipeline_parallel_size
    if n_stages == 1:
        return Stages()
    from vllm.distributed.utils import get_pp_indices

    config = vllm_config.model_config.hf_text_config
    n_layers = config.num_hidden_layers
    kinds = getattr(config, "layer_types", None) or [FULL] * n_layers
    layers = tuple(range(*get_pp_indices(n_layers, stage, n_stages)) for stage in range(n_stages))
    n_cached = tuple(sum(kinds[i] == FULL for i in of_stage) for of_stage in layers)
    if 0 in n_cached:
        raise NotImplementedError(f"kvant needs a layer without a sliding window in each stage of pipeline parallelism, and stage "
                                  f"{n_cached.index(0) + 1} has none: use fewer stages, or set VLLM_PP_LAYER_PARTITION")
    return Stages(layers, n_cached, parallel.rank // parallel.tensor_parallel_size % n_stages)
