"""vLLM's scheduler-side files without PyTorch and without a GPU: the modules named here are its own, all that they import
beside them is mocked. The files come from a wheel that scripts/fetch-vllm unpacks into build/."""

import importlib.abc
import importlib.machinery
import importlib.util
import pathlib
import sys
import types
from unittest import mock

ROOT = pathlib.Path(__file__).resolve().parents[2] / "build" / "vllm-0.26.0"
OWN = """vllm.v1.kv_cache_interface vllm.v1.kv_cache_spec_registry vllm.v1.core.kv_cache_utils vllm.v1.core.block_pool
vllm.v1.core.single_type_kv_cache_manager vllm.v1.core.kv_cache_coordinator vllm.v1.core.kv_cache_manager
vllm.model_executor.layers.attention_layer_base""".split()
MOCKED = set("""vllm torch transformers PIL zmq msgspec cbor2 numpy triton pydantic xxhash cloudpickle regex psutil
fastapi""".split())


class MockedModule(types.ModuleType):
    """Any name is a mock, except what Python itself looks for."""

    __path__ = []

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        value = mock.MagicMock(name=f"{self.__name__}.{name}")
        setattr(self, name, value)
        return value


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path, target=None):
        if name in OWN:
            return importlib.util.spec_from_file_location(name, ROOT / (name.replace(".", "/") + ".py"))
        if name.partition(".")[0] in MOCKED:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        return MockedModule(spec.name)

    def exec_module(self, module):
        pass


class Dtype:
    def __init__(self, name, itemsize):
        self.name, self.itemsize = name, itemsize


def install():
    """From here on `import vllm` gives this. Meant for a process of its own."""
    sys.meta_path.insert(0, Finder())
    import torch

    torch.dtype, torch.Tensor = Dtype, type("Tensor", (), {})
    for name, itemsize in (("uint8", 1), ("int8", 1), ("bfloat16", 2), ("float16", 2), ("float32", 4)):
        setattr(torch, name, Dtype(name, itemsize))
    import vllm.envs
    import vllm.utils.math_utils as math_utils
    import vllm.utils.torch_utils as torch_utils

    vllm.envs.VLLM_PREFIX_CACHE_RETENTION_INTERVAL = None
    torch_utils.get_dtype_size = lambda dtype: dtype.itemsize
    math_utils.cdiv = lambda a, b: -(-a // b)
    math_utils.round_up = lambda a, b: -(-a // b) * b
    math_utils.round_down = lambda a, b: a // b * b
