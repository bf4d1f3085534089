"""Extends vLLM's workers for the checks in this folder (`worker_extension_cls`). There is one worker per GPU. With
tensor or pipeline parallelism, workers are separate processes. `LLM.collective_rpc` calls these methods and returns a
list of their results."""

import sys

import torch
from torch.autograd import DeviceType

# Logits are computed for ROWS rows at a time.
ROWS = 1024
NAME_LENGTH = 70
# Kernels below the share OTHERS_BELOW of the GPU's time are summed up.
OTHERS_BELOW = 0.01


def has_logits() -> bool:
    """Returns whether this worker is the first one of the last stage of pipeline parallelism. Only the last stage computes
    logits, and all ranks of tensor parallelism have the same ones."""
    from vllm.distributed.parallel_state import get_pp_group, get_tp_group

    return get_pp_group().is_last_rank and get_tp_group().rank_in_group == 0


class Worker:
    """Is mixed into vLLM's worker. The prefix of the names avoids collisions."""

    def kvant_catch_logits(self) -> None:
        """Records from now on the predictions for the second halves of prompts."""
        from vllm.v1.worker.gpu.sample.prompt_logprob import PromptLogprobsWorker

        self._kvant_rows = {}
        original = PromptLogprobsWorker.compute_prompt_logprobs

        def wrapped(worker, logits_fn, hidden_states, batch, all_token_ids, num_computed_tokens, prompt_lens):
            for i, name in enumerate(batch.req_ids):
                if not worker.uses_prompt_logprobs[batch.idx_mapping_np[i]] or name.startswith("_warmup"):
                    continue
                length = int(prompt_lens[batch.idx_mapping_np[i]])
                first, end = map(int, batch.query_start_loc_np[i:i + 2])
                first += max(0, length // 2 - int(batch.num_computed_prefill_tokens_np[i]))
                for row in range(first, end, ROWS):
                    # All ranks of the last stage compute the logits together.
                    logits = logits_fn(hidden_states[row:min(row + ROWS, end)])
                    if has_logits():
                        self._kvant_rows.setdefault(name, []).append(logits.float().log_softmax(-1))
            return original(worker, logits_fn, hidden_states, batch, all_token_ids, num_computed_tokens, prompt_lens)

        PromptLogprobsWorker.compute_prompt_logprobs = wrapped

    def kvant_save_logits(self, path: str) -> None:
        """Saves the log-probabilities of all requests since kvant_catch_logits(), in the order of their names: F32
        [n_tokens, vocabulary]. Only one worker writes the file."""
        rows, self._kvant_rows = self._kvant_rows, {}
        if has_logits():
            torch.save([torch.cat(rows[name]).cpu() for name in sorted(rows, key=lambda name: int(name.split("-")[0]))], path)

    def kvant_start_profile(self) -> None:
        torch.cuda.synchronize()
        self._kvant_profile = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA])
        self._kvant_profile.start()

    def kvant_stop_profile(self) -> dict:
        """Returns the GPU's milliseconds and launches by kernel, in the order of falling time."""
        torch.cuda.synchronize()
        self._kvant_profile.stop()
        times = {}
        for event in self._kvant_profile.events():
            if event.device_type == DeviceType.CUDA:
                ms, n = times.get(event.name, (0, 0))
                times[event.name] = ms + event.time_range.elapsed_us() / 1e3, n + 1
        total, result = sum(ms for ms, _ in times.values()), {}
        for name, (ms, n) in sorted(times.items(), key=lambda item: -item[1][0]):
            name = name[:NAME_LENGTH] if ms >= OTHERS_BELOW * total else "others"
            before = result.get(name, (0, 0))
            result[name] = round(before[0] + ms, 2), before[1] + n
        return result

    def kvant_limit_blocks(self, n: int) -> bool:
        """Empties the cache and leaves n blocks to requests. Returns false if a step still uses blocks. On one GPU, worker
        and scheduler are in one process, and the engine that holds the scheduler calls this method."""
        from vllm.v1.engine.core import EngineCore

        frame = sys._getframe()
        while not isinstance(frame.f_locals.get("self"), EngineCore):
            frame = frame.f_back
        scheduler = frame.f_locals["self"].scheduler
        pool = scheduler.kv_cache_manager.block_pool
        pool.free_blocks(getattr(self, "_kvant_kept", []))
        self._kvant_kept = []
        if not scheduler.reset_prefix_cache():
            return False
        self._kvant_kept = pool.get_new_blocks(max(0, pool.get_num_free_blocks() - n))
        return True
