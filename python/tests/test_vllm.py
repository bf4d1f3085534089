"""Tests the plug-in with the files of vLLM that it supports, as far as no GPU is needed. `vllm_checks`,
`vllm_drafter_checks`, `vllm_worker_checks`, `vllm_scheduler_checks`, `vllm_offload_checks` and `vllm_hybrid_checks` run in
separate processes, because their mocks would disturb other tests."""

import importlib.metadata
import os
import pathlib
import subprocess
import sys
import unittest
import unittest.mock
import warnings
from importlib.util import find_spec

import vllm_stub

import kvant.vllm


class Checks(unittest.TestCase):
    def check(self, checks):
        tests = pathlib.Path(__file__).resolve().parent
        if not vllm_stub.FOLDER.exists():
            self.skipTest(f"{vllm_stub.FOLDER} is not there: scripts/fetch-vllm")
        run = subprocess.run([sys.executable, "-m", "unittest", "-v", checks], cwd=tests, capture_output=True, text=True,
                             env={**os.environ, "PYTHONPATH": str(tests.parent)})
        self.assertEqual(run.returncode, 0, run.stderr)

    def test_planner_managers_and_layers(self):
        self.check("vllm_checks")

    def test_drafters(self):
        self.check("vllm_drafter_checks")

    @unittest.skipIf(find_spec("torch") is None, "no PyTorch")
    def test_builders_and_forward_passes(self):
        self.check("vllm_worker_checks")

    @unittest.skipIf(find_spec("torch") is None, "no PyTorch")
    def test_schedulers(self):
        self.check("vllm_scheduler_checks")

    @unittest.skipIf(find_spec("torch") is None, "no PyTorch")
    def test_offload(self):
        self.check("vllm_offload_checks")

    @unittest.skipIf(find_spec("torch") is None, "no PyTorch")
    def test_hybrid_models(self):
        self.check("vllm_hybrid_checks")


class Registration(unittest.TestCase):
    def register(self, version):
        """Returns the module of the release, which registers itself."""
        registered = []
        module = unittest.mock.Mock()
        with unittest.mock.patch.object(importlib.metadata, "version", lambda name: version), \
                unittest.mock.patch.object(importlib, "import_module", module), \
                unittest.mock.patch.object(kvant.vllm, "_is_registered", False):
            module.side_effect = lambda name: unittest.mock.Mock(register=lambda: registered.append(name))
            kvant.vllm.register()
            kvant.vllm.register()
        return registered

    def test_the_installed_release_decides(self):
        self.assertEqual(self.register("0.33.1"), ["kvant.vllm.v033"])

    def test_other_releases_are_left_alone_with_a_sentence(self):
        for version in ("0.26.0", "0.3.3", "0.34.0rc1"):
            with warnings.catch_warnings(record=True) as warned:
                warnings.simplefilter("always")
                self.assertEqual(self.register(version), [])
            self.assertEqual(str(warned[0].message), "kvant's plug-in needs vLLM 0.33, not "
                             f"{version}: the plug-in is disabled")


if __name__ == "__main__":
    unittest.main()
