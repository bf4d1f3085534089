"""What the checks here do within vLLM's workers (`worker_extension_cls`): one for each GPU, in processes of their own under tensor
parallelism. Called by `LLM.collective_rpc`, which gives a list of what each of them returns."""

import torch
from torch.autograd import DeviceType

ROWS = 1024  # of logits at a time
NAME_LENGTH = 70
OTHERS_BELOW = 0.01  # kernels that take less of the GPU's time than this are summed up


class Worker:
    """Mixed into vLLM's worker. Names are its own, hence the prefix."""

    def kvant_catch_logits(self) -> None:
        """From now on, what prompts' second halves make of the next token."""
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
                    logits = logits_fn(hidden_states[row:min(row + ROWS, end)])  # by all ranks together
                    if self.rank == 0:
                        self._kvant_rows.setdefault(name, []).append(logits.float().log_softmax(-1))
            return original(worker, logits_fn, hidden_states, batch, all_token_ids, num_computed_tokens, prompt_lens)

        PromptLogprobsWorker.compute_prompt_logprobs = wrapped

    def kvant_save_logits(self, path: str) -> None:
        """Of all requests since, in the order of their names: log-probabilities, F32 [n_tokens, vocabulary]. By rank 0 alone."""
        rows, self._kvant_rows = self._kvant_rows, {}
        if self.rank == 0:
            torch.save([torch.cat(rows[name]).cpu() for name in sorted(rows, key=lambda name: int(name.split("-")[0]))], path)

    def kvant_start_profile(self) -> None:
        torch.cuda.synchronize()
        self._kvant_profile = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA])
        self._kvant_profile.start()

    def kvant_stop_profile(self) -> dict:
        """Milliseconds of the GPU and launches, by kernel, the most first."""
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
