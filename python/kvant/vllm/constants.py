"""Finds the constants of the served model, for the heads of one rank of tensor parallelism."""

from __future__ import annotations

import os

from kvant.paged import checkpoint
from kvant.paged.constants import Constants, ModelShape, heads_of_rank, read_constants
from kvant.paged.model_constants import ModelConstants
from kvant.paged.recipes import Recipe


def constants_of_rank(path: str, recipe: Recipe, vllm_config, softmax_scale: float) -> tuple[Recipe, ModelConstants]:
    """Returns the recipe with the model's constants. Raises ValueError or kvant.Error with a sentence for users."""
    model, parallel = vllm_config.model_config, vllm_config.parallel_config
    config, n_ranks = model.hf_text_config, parallel.tensor_parallel_size
    n_kv_heads = model.get_total_num_kv_heads()
    shape = ModelShape(config.num_hidden_layers, config.num_attention_heads, n_kv_heads, model.get_head_size(), softmax_scale,
                       config.max_position_embeddings, config.vocab_size)
    found: Constants = read_constants(path, recipe, shape)
    checkpoint.check_fingerprint(checkpoint.of_files(_folder(vllm_config), config), found.fingerprint, found.model, path)
    return found.recipe, found.of_model.of_heads(heads_of_rank(n_kv_heads, parallel.rank % n_ranks, n_ranks))


def _folder(vllm_config) -> str:
    """Returns the folder of the checkpoint's files."""
    model = vllm_config.model_config
    if os.path.isdir(model.model):
        return model.model
    from huggingface_hub import snapshot_download

    return snapshot_download(model.model, revision=model.revision, cache_dir=vllm_config.load_config.download_dir,
                             allow_patterns=["*.safetensors"])
