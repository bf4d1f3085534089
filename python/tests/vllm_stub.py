"""Loads vLLM's scheduler-side files and its attention layer without a GPU, and if necessary without PyTorch. The
modules that are named here are vLLM's own, and everything else that they import is mocked. scripts/fetch-vllm unpacks
the files from wheels into build/."""

import importlib.abc
import importlib.machinery
import importlib.util
import pathlib
import sys
import types
from unittest import mock

FOLDER = pathlib.Path(__file__).resolve().parents[2] / "build/vllm-0.33.0"
OWN = """vllm.v1.kv_cache_interface vllm.v1.kv_cache_layout vllm.v1.kv_cache_spec_registry vllm.v1.core.kv_cache_utils
vllm.v1.core.kv_cache_planning vllm.v1.core.kv_cache_config_builder vllm.v1.core.block_pool
vllm.v1.core.single_type_kv_cache_manager vllm.v1.core.kv_cache_coordinator vllm.v1.core.kv_cache_manager
vllm.config.cache vllm.distributed.utils vllm.v1.attention.backend vllm.model_executor.layers.attention_layer_base
vllm.model_executor.layers.attention.attention""".split()
MOCKED = set("""vllm torch transformers PIL zmq msgspec cbor2 numpy triton pydantic xxhash cloudpickle regex psutil
fastapi uvloop""".split())


class MockedModule(types.ModuleType):
    """Returns a mock for any name, except for names that Python itself looks for."""

    __path__ = []

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        value = mock.MagicMock(name=f"{self.__name__}.{name}")
        setattr(self, name, value)
        return value


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def __init__(self, root, mocked):
        self.root, self.mocked = root, mocked

    def find_spec(self, name, path, target=None):
        file = self.root / (name.replace(".", "/") + ".py")
        if name in OWN and file.exists():
            return importlib.util.spec_from_file_location(name, file)
        if name.partition(".")[0] in self.mocked:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        return MockedModule(spec.name)

    def exec_module(self, module):
        pass


class Dtype:
    def __init__(self, name, itemsize):
        self.name, self.itemsize = name, itemsize


def _mock_torch():
    import torch
    import torch.nn

    torch.dtype, torch.Tensor, torch.nn.Module = Dtype, type("Tensor", (), {}), type("Module", (), {})
    for name, itemsize in (("uint8", 1), ("int8", 1), ("bfloat16", 2), ("float16", 2), ("float32", 4)):
        setattr(torch, name, Dtype(name, itemsize))


def install(with_torch=False):
    """Makes `import vllm` load the files of the stub from here on. A process that calls this function should do nothing
    else. With with_torch, PyTorch and NumPy are not mocked."""
    sys.meta_path.insert(0, Finder(FOLDER, MOCKED - {"torch", "numpy"} if with_torch else MOCKED))
    if not with_torch:
        _mock_torch()
    import vllm.config
    import vllm.distributed.parallel_state as parallel_state
    import vllm.envs
    import vllm.utils.math_utils as math_utils
    import vllm.utils.torch_utils as torch_utils
    import vllm.v1.hisparse.layout as hisparse

    vllm.envs.VLLM_PREFIX_CACHE_RETENTION_INTERVAL = vllm.envs.VLLM_PP_LAYER_PARTITION = None
    hisparse.get_hisparse_kv_cache_groups = lambda *args: None
    vllm.config.get_current_vllm_config_or_none = lambda: None
    one = types.SimpleNamespace(world_size=1, rank_in_group=0)
    parallel_state.get_dcp_group = parallel_state.get_pcp_group = lambda: one
    parallel_state.get_dcp_world_size_and_rank = lambda *args: (1, 0)
    torch_utils.get_dtype_size = lambda dtype: dtype.itemsize
    math_utils.cdiv = lambda a, b: -(-a // b)
    math_utils.round_up = lambda a, b: -(-a // b) * b
    math_utils.round_down = lambda a, b: a // b * b
