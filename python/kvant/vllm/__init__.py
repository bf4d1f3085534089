"""kvant as a vLLM plug-in: `--attention-backend CUSTOM --kv-cache-dtype kvant_4bit` (docs/guide/vllm.md).

vLLM calls `register` in each of its processes. All that depends on vLLM's version is in `v026`."""

SUPPORTED_VERSION = "0.26"


def register() -> None:
    """Adds kvant's cache types and its attention backend to vLLM. May be called more than once in a process."""
    from importlib.metadata import version

    installed = version("vllm")
    if not installed.startswith(SUPPORTED_VERSION + "."):
        import warnings

        warnings.warn(f"kvant's plug-in is for vLLM {SUPPORTED_VERSION}, this is {installed}: it is left out",
                      stacklevel=2)
        return
    from kvant.vllm import v026

    v026.register()
