"""Lists the models on which quality is measured. scripts/measure-quality and the results call them by these names."""
from typing import NamedTuple


class Model(NamedTuple):
    title: str
    file: str
    heads: str
    trained: str


MODELS = {
    "qwen2.5-coder-1.5b":
    Model("Qwen2.5-Coder-1.5B", "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
          "28 layers, 12 query and 2 KV heads of 128, biases of keys", "32,768"),
    "gemma-3-270m":
    Model("Gemma 3 270M", "gemma-3-270m-q4_k_m.gguf",
          "18 layers, 4 query heads and 1 KV head of 256, sliding windows in 15 of them", "32,768"),
    "smollm2-135m":
    Model("SmolLM2-135M", "smollm2-135m-instruct.gguf", "30 layers, 9 query and 3 KV heads of 64", "8,192"),
}
# Results that name no model belong to FIRST.
FIRST = "smollm2-135m"


def model_of(document):
    return document.get("model", FIRST)
