#!/usr/bin/env python3
"""Tests scripts/measure-quality with a stand-in program that writes results without measuring."""
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

SCRIPTS = pathlib.Path(__file__).resolve().parent
PROGRAM = '''#!/usr/bin/env python3
import json, os, sys
words = sys.argv
value = lambda option: words[words.index(option) + 1]
with open(os.path.join(os.path.dirname(words[0]), "calls"), "a") as calls:
    print(" ".join(words[1:]), file=calls)
if words[1] == "calibrate":
    sys.exit(0)
if "llama.cpp:f16" in words and "--no-kv-offload" not in words:
    sys.exit("no flash attention")
names = ["bf16"] + value("--kv").split(";")
if "uncalibrated" in value("-m"):
    names = [name.replace("kvant", "uniform") for name in names]
json.dump({"schema": "kvant.eval/2", "context": int(value("-c")), "chunks": int(value("--chunks")),
           "results": [{"recipe": name} for name in names]}, open(value("--json"), "w"))
'''


class MeasureQuality(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp())
        program = self.folder / "kvant"
        program.write_text(PROGRAM)
        program.chmod(0o755)
        for name in ("a.gguf", "uncalibrated.gguf", "wikitext-2-test.txt"):
            (self.folder / name).write_text("text")

    def measure(self, *options, model="a.gguf"):
        words = [sys.executable, str(SCRIPTS / "measure-quality"), "--kvant", str(self.folder / "kvant"), "--model",
                 f"m={self.folder / model}", "--texts", str(self.folder), "--out", str(self.folder / "out"), *options]
        return subprocess.run(words, capture_output=True, text=True, check=False)

    def calls(self):
        path = self.folder / "calls"
        return path.read_text().splitlines() if path.exists() else []

    def result(self, name):
        return json.loads((self.folder / "out/m/wikitext-2" / f"{name}.json").read_text())

    def test_main_recipes_come_first_and_calibration_before_what_needs_it(self):
        self.assertEqual(self.measure("--device", "cuda", "--only", "wikitext-2/2048").returncode, 0)
        calls = self.calls()
        place = lambda words: next(i for i, call in enumerate(calls) if words in call)
        self.assertLess(place("calibrate -m"), place("--kv kvant-4bit;kvant-3bit"))
        self.assertLess(place("--kv kvant-4bit;kvant-3bit"), place("kivi-4bit,window=0"))
        self.assertLess(place("kivi-4bit,window=0"), place("vecinfer-4bit;"))
        self.assertEqual(self.result("2048/kvant")["measured"],
                         {"model": "m", "text": "wikitext-2", "backend": "cuda", "reference": "bf16"})

    def test_what_has_a_result_is_not_run_again(self):
        self.measure("--device", "cuda", "--only", "2048/turbo")
        self.assertEqual(self.measure("--device", "cuda", "--only", "2048/turbo").returncode, 0)
        self.assertEqual(len([call for call in self.calls() if "turbo4;turbo3" in call]), 1)

    def test_no_group_starts_after_the_minutes(self):
        run = self.measure("--device", "cuda", "--minutes", "0.000001")
        self.assertEqual((run.returncode, self.calls()), (0, []))
        self.assertIn("not started, from m", run.stdout)

    def test_rows_of_another_recipe_than_the_one_asked_for_are_no_result(self):
        run = self.measure("--device", "cuda", "--only", "2048/kvant", model="uncalibrated.gguf")
        self.assertNotEqual(run.returncode, 0)
        self.assertFalse((self.folder / "out/m/wikitext-2/2048/kvant.json").exists())
        self.assertIn("not calibrated: kvant-4bit", (self.folder / "out/m/wikitext-2/2048/kvant.log").read_text())

    def test_the_cpu_attends_where_the_gpu_does_not(self):
        self.measure("--device", "cuda", "--only", "2048/fp8-engines")
        self.measure("--device", "cuda", "--only", "2048/llama.cpp")
        for name in ("fp8-engines", "llama.cpp"):
            result = self.result(f"2048/{name}")
            self.assertEqual((result["measured"]["backend"], result["chunks"]), ("host", 8), name)

    def test_the_longest_contexts_are_of_models_that_are_named(self):
        shown = self.measure("--device", "cuda", "--list").stdout
        self.assertNotIn("32768", shown)
        self.assertIn("m/wikitext-2/32768/kvant (4)", self.measure("--device", "cuda", "--long", "m", "--list").stdout)
        self.assertIn("--long names a model", self.measure("--long", "other").stderr)


unittest.main()
