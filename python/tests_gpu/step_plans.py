#!/usr/bin/env python3
"""Tests steps that the library plans on the GPU against the rules. Also prints, as a line of JSON, how long a plan with
its schedule takes. The exit status is 1 if any step differs."""

import json
import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "tests"))

import numpy as np
import test_step_plan
import torch

from kvant.paged import decode
from kvant.torch import TorchLibrary


class PlansOnTheGpu(test_step_plan.Plans):
    device = torch.device("cuda")

    # The inherited test compares with formats of libkvant_cpu. captured_step_test.cu tests whole steps on a GPU.
    test_whole_steps_show_tokens_what_the_rule_says = None

    def new_library(self):
        return TorchLibrary()

    def test_takes_some_microseconds(self):
        n, times = 64, {}
        for name, max_rows in (("one token", 1), ("drafts", 4)):
            cache = self.cache(n, max_rows)
            blocks, tail_blocks = self.blocks(n, test_step_plan.MAX_PAGES), self.blocks(n, cache.layout.tail_blocks)
            seq_lens, begins = self.int32(np.full(n, 643)), self.int32(max_rows * np.arange(n + 1)) if max_rows > 1 else None
            times[name] = self.us(lambda: decode.prepare(cache, seq_lens, blocks, tail_blocks, begins))
        print(json.dumps({"plan and schedule of 64 requests, us in a CUDA graph": times}))
        self.assertLess(max(times.values()), 100)

    def us(self, launch):
        """Returns the microseconds of a replay."""
        launch()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            kept = launch()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        for _ in range(200):
            graph.replay()
        begin.record()
        for _ in range(100):
            graph.replay()
        end.record()
        torch.cuda.synchronize()
        del kept
        return round(10 * begin.elapsed_time(end), 1)


if __name__ == "__main__":
    unittest.main()
