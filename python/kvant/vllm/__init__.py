"""Integrates kvant into vLLM as a plug-in: `--attention-backend CUSTOM --kv-cache-dtype kvant_uniform_4bit`
(docs/guide/vllm.md).

vLLM calls `register` in each of its processes. Everything that depends on vLLM's release is in one file per release."""

RELEASES = {"0.33": "v033"}

_is_registered = False


def register() -> None:
    """Adds kvant's cache types and its attention backend to vLLM. A process may call this function several times."""
    global _is_registered
    from importlib import import_module
    from importlib.metadata import version

    installed = version("vllm")
    release = RELEASES.get(".".join(installed.split(".")[:2]))
    if release is None:
        import warnings

        warnings.warn(f"kvant's plug-in needs vLLM {' or '.join(RELEASES)}, not {installed}: the plug-in is disabled",
                      stacklevel=2)
    elif not _is_registered:
        _is_registered = True
        from kvant.vllm import guard_metrics

        guard_metrics.prepare()
        import_module(f"kvant.vllm.{release}").register()
