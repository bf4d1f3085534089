"""Finds the constants of the served model, for the heads of one rank of tensor parallelism and the layers of one stage of
pipeline parallelism."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pathlib
import subprocess
import sys
from dataclasses import dataclass

from kvant.paged import checkpoint
from kvant.paged.constants import TURNS_NEIGHBOURS, Constants, ModelShape, heads_of_rank, read_constants
from kvant.paged.model_constants import ModelConstants
from kvant.paged.recipes import Recipe
from kvant.vllm.recipes import NO_CALIBRATION, may_calibrate
from kvant.vllm.stages import FULL, Stages


@dataclass(frozen=True)
class RankConstants:
    """Holds the recipe and the model's constants for the heads of a rank."""

    recipe: Recipe
    of_model: ModelConstants
    # Holds the formats of each rank's heads in each stage, by layer and head. The tuple is empty without formats by
    # head.
    of_ranks: tuple[Recipe, ...] = ()
    # Tells users what was not checked.
    warning: str = ""


def constants_of_rank(path: str, recipe: Recipe, vllm_config, softmax_scale: float, serves_by_head: bool,
                      stages: Stages) -> RankConstants:
    """Returns the recipe with the model's constants. Raises ValueError or kvant.Error with a sentence for users."""
    model, parallel = vllm_config.model_config, vllm_config.parallel_config
    config, n_ranks = model.hf_text_config, parallel.tensor_parallel_size
    shape = shape_of(vllm_config, softmax_scale)
    found: Constants = read_constants(path, recipe, shape, serves_by_head, n_ranks)
    warning = ""
    if found.is_of_gguf:
        warning = (f"kvant: the constants '{path}' were made from a GGUF file ({found.model}); kvant does not check that this "
                   "checkpoint has the same weights")
    else:
        checkpoint.check_fingerprint(checkpoint.of_files(folder_of(vllm_config), config), found.fingerprint, found.model, path)
    all_heads = [heads_of_rank(shape.n_kv_heads, rank, n_ranks) for rank in range(n_ranks)]
    of_ranks = tuple(found.recipe.of_heads(heads).of_stage(layers) for layers in stages.slices() for heads in all_heads)
    rank, layers = parallel.rank % n_ranks, stages.slices()[stages.mine]
    return RankConstants(of_ranks[stages.mine * n_ranks + rank], found.of_model.of_heads(all_heads[rank]).of_stage(layers),
                         of_ranks if found.recipe.by_head else (), warning)


def shape_of(vllm_config, softmax_scale: float) -> ModelShape:
    model = vllm_config.model_config
    config = model.hf_text_config
    return ModelShape(config.num_hidden_layers, config.num_attention_heads, model.get_total_num_kv_heads(), model.get_head_size(),
                      softmax_scale, config.max_position_embeddings, config.vocab_size,
                      getattr(config, "model_type", "") in TURNS_NEIGHBOURS)


def find_constants(recipe: Recipe, vllm_config, softmax_scale: float, say) -> tuple[str | None, str]:
    """Returns the file of the model's constants for a recipe with bits by layer and head, or None and the reason why
    there is no file. The file is in the cache folder of `kvant`, under a name that contains the checkpoint's
    fingerprint. If the file is missing and calibration is allowed, the function makes the file, which takes minutes.
    All ranks of tensor parallelism and all stages get the result of the first rank. `say` logs a line."""
    parallel = vllm_config.parallel_config
    n_ranks, n_stages = parallel.tensor_parallel_size, parallel.pipeline_parallel_size
    found = None, ""
    if parallel.rank % (n_ranks * n_stages) == 0:
        try:
            found = _find_or_make(recipe, vllm_config, softmax_scale, say), ""
        # Other ranks wait for the answer, so no fault may end this rank before the broadcast.
        except Exception as failure:  # noqa: BLE001
            found = None, str(failure).removeprefix("kvant: ")
    from vllm.distributed.parallel_state import get_pp_group, get_tp_group

    if n_stages > 1 and parallel.rank % n_ranks == 0:
        found = get_pp_group().broadcast_object(found, src=0)
    if n_ranks > 1:
        found = get_tp_group().broadcast_object(found, src=0)
    return found


def _find_or_make(recipe: Recipe, vllm_config, softmax_scale: float, say) -> str:
    from kvant.engine import _engine

    _check_kinds(vllm_config.model_config.hf_text_config)
    folder, config = folder_of(vllm_config), vllm_config.model_config.hf_text_config
    shape = shape_of(vllm_config, softmax_scale)
    path = pathlib.Path(_engine.calibration_path(recipe.asked_name, shape.geometry(), checkpoint.of_files(folder, config), ""))
    if is_usable(path, recipe, shape):
        return str(path)
    if not may_calibrate(vllm_config.additional_config):
        raise ValueError("this model has no constants in kvant's cache folder, and --additional-config turns calibration off")
    say(f"kvant: {recipe.asked_name} is being calibrated for {folder}, which takes some minutes at the first start ({NO_CALIBRATION} "
        "turns this off)")
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(f"{path}.lock", "w") as lock:
        # Another server may be calibrating the same model.
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not is_usable(path, recipe, shape):
            calibrate(folder, recipe.asked_name, path)
    return str(path)


def is_usable(path: pathlib.Path, recipe: Recipe, shape: ModelShape) -> bool:
    """Returns whether the file exists and has bits by layer and head. Earlier versions of kvant wrote other files."""
    from kvant.engine import _engine

    if path.exists():
        with contextlib.suppress(_engine.Error, ValueError):
            return bool(read_constants(path, recipe, shape, serves_by_head=True).recipe.by_head)
    return False


def calibrate(folder: str, recipe: str, path: pathlib.Path) -> None:
    """Makes the file in a process of its own, which gives back its memory on the GPU when it ends. Raises RuntimeError
    with the last line of its output if it fails."""
    import torch

    device = f"cuda:{torch.cuda.current_device()}" if torch.cuda.is_available() else "cpu"
    run = subprocess.run([sys.executable, "-m", "kvant.hf", folder, recipe, "--path", str(path), "--device", device],
                         stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if run.returncode != 0:
        lines = run.stdout.strip().splitlines() or ["it said nothing"]
        raise RuntimeError(f"calibration failed ({lines[-1].removeprefix('kvant: ')})")


def _check_kinds(config) -> None:
    """Raises NotImplementedError for layers that kvant leaves to vLLM."""
    kinds = set(getattr(config, "layer_types", None) or [FULL])
    if kinds != {FULL}:
        raise NotImplementedError(f"the model has layers of the kinds {', '.join(sorted(kinds))}")


def folder_of(vllm_config) -> str:
    """Returns the folder of the checkpoint's files, with the configuration and tokenizer that calibration needs."""
    model = vllm_config.model_config
    if os.path.isdir(model.model):
        return model.model
    from huggingface_hub import snapshot_download

    return snapshot_download(model.model, revision=model.revision, cache_dir=vllm_config.load_config.download_dir,
                             allow_patterns=["*.safetensors", "*.json", "*.txt", "*.model"])
