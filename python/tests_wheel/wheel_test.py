"""Tests the package as its users get it. The test packs a wheel from a build folder, installs it into a clean
environment, and compares the package's results with the program's.

    wheel_test.py BUILD_FOLDER PROGRAM MODEL"""

import itertools
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
import venv
import zipfile

import numpy

HERE = pathlib.Path(__file__).resolve().parent
sys.path.append(str(HERE.parent / "tests"))
import calibration_file  # noqa: E402

SOURCE = HERE.parents[1]
TEXT = SOURCE / "data" / "sample" / "canals.txt"
KV = "kvant-4bit"
QUESTION = "Name three colours."


def run(*command, **options) -> str:
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=300, **options)
    if done.returncode != 0:
        raise RuntimeError(f"{command[0]} failed:\n{done.stdout}\n{done.stderr}")
    return done.stdout


def numbers_of(ranges: str) -> list[int]:
    """Returns the numbers in a text such as 0-1,24."""
    bounds = [part.split("-") for part in ranges.split(",")]
    return [number for first, *last in bounds for number in range(int(first), int(last[0] if last else first) + 1)]


class Wheel(unittest.TestCase):
    build_folder: pathlib.Path
    program: pathlib.Path
    model: pathlib.Path

    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.folder = pathlib.Path(folder.name)
        run(sys.executable, "-m", "pip", "wheel", SOURCE, "--no-deps", "--no-build-isolation", "--wheel-dir", cls.folder,
            "--config-settings", f"build-dir={cls.folder / 'pack'}", "--config-settings",
            f"cmake.define.KVANT_BUILT={cls.build_folder}")
        cls.wheel, = cls.folder.glob("kvant-*.whl")
        venv.create(cls.folder / "env", symlinks=True)
        cls.python = cls.folder / "env" / "bin" / "python"
        run(sys.executable, "-m", "pip", "--python", cls.python, "install", "--no-deps", "--no-index", cls.wheel)
        packages, = (cls.folder / "env").glob("lib/python3*/site-packages")
        for needed in pathlib.Path(numpy.__file__).parents[1].glob("numpy*"):
            (packages / needed.name).symlink_to(needed)
        environment = os.environ | {"XDG_CACHE_HOME": str(cls.folder / "cache"), "TMPDIR": str(cls.folder)}
        cls.environment = {name: x for name, x in environment.items() if name not in ("PYTHONPATH", "LD_LIBRARY_PATH")}
        cls.found = json.loads(run(cls.python, HERE / "use_package.py", cls.model, TEXT, KV, QUESTION, cwd=cls.folder,
                                   env=cls.environment))

    def command(self, *arguments) -> dict:
        """Returns the JSON that the program writes."""
        path = self.folder / "out.json"
        run(self.program, *arguments, "--json", path, cwd=self.folder, env=self.environment)
        return json.loads(path.read_text())

    def test_has_what_it_needs_and_no_more(self):
        with zipfile.ZipFile(self.wheel) as wheel:
            names = wheel.namelist()
        for wanted in ("kvant/engine.py", "kvant/py.typed", "kvant/_engine.pyi", "kvant/vllm/backend.py", "kvant/recipes.json", "LICENSE"):
            self.assertTrue(any(name.endswith(wanted) for name in names), wanted)
        self.assertTrue(any("libllama" in name for name in names))
        self.assertFalse([name for name in names if "libstdc++" in name or "libc.so" in name or "test" in name])
        self.assertEqual(self.found["entry_points"], ["kvant.vllm:register"])
        self.assertEqual(self.found["version"], self.found["metadata_version"])

    @unittest.skipIf(shutil.which("readelf") is None, "no readelf")
    def test_libraries_look_beside_themselves_for_what_they_need(self):
        lib, = (self.folder / "env").glob("lib/python3*/site-packages/kvant/lib")
        there = {path.name for path in lib.iterdir()}
        for path in (*lib.iterdir(), lib.parent / "bin" / "kvant"):
            dynamic = run("readelf", "-d", path)
            if there & set(re.findall(r"NEEDED.*\[(.+)\]", dynamic)):
                self.assertRegex(dynamic, r"(RUNPATH|RPATH).*\$ORIGIN", path.name)

    def test_has_the_program(self):
        command = self.folder / "env" / "bin" / "kvant"
        self.assertEqual(run(command, "--version", cwd=self.folder, env=self.environment).strip(), f"kvant {self.found['version']}")
        question = ("run", "-m", self.model, "--kv", KV, "-p", QUESTION, "-n", 12)
        wanted = run(self.program, *question, cwd=self.folder, env=self.environment)
        self.assertEqual(run(command, *question, cwd=self.folder, env=self.environment), wanted)
        wrong = subprocess.run([self.python, "-m", "kvant", "runn"], capture_output=True, text=True, env=self.environment)
        self.assertEqual(wrong.returncode, 2)
        self.assertIn("runn", wrong.stderr)

    def test_needs_no_torch(self):
        self.assertNotIn("torch", self.found["modules"])

    def test_answers_as_the_program_does(self):
        answer = self.command("run", "-m", self.model, "--kv", KV, "-p", QUESTION, "-n", 12)
        self.assertEqual(self.found["chat"], answer["answer"])
        raw = self.command("run", "-m", self.model, "--kv", KV, "-p", QUESTION, "-n", 12, "--raw", "--temp", 0.8, "-s", 7)
        self.assertEqual(self.found["sampled"], raw["answer"])
        self.assertEqual(self.found["pieces"], self.found["chat"])

    def test_takes_a_chat_template_and_leaves_out_drafts(self):
        self.assertEqual(self.found["templated"], self.found["by_hand"])
        self.assertNotEqual(self.found["templated"], self.found["chat"])
        self.assertEqual(self.found["repeated"], self.found["repeated_without_drafts"])

    def test_scores_and_stops(self):
        # Scores of greedily generated tokens must equal their log-probabilities, except for the rounding of products
        # with quantized weights.
        differences = numpy.abs(numpy.subtract(self.found["scored"], self.found["logprobs"]))
        self.assertLess(differences.max(), 0.4)
        self.assertLess(differences.mean(), 0.15)
        self.assertEqual(self.found["stopped"], ["finished", "finished"])
        self.assertEqual(self.found["decoded"], "Zürich – 水")

    def test_evaluates_as_the_program_does(self):
        wanted = self.command("eval", "-m", self.model, "--kv", KV, "-f", TEXT, "-c", 256, "--chunks", 1)
        found = self.found["evaluation"]
        for wanted_row, found_row in zip(wanted["results"], found["results"], strict=True):
            for name in ("recipe", "kld_mean", "kld_lo", "kld_hi", "top1", "ppl", "bits_all", "positions", "plan"):
                self.assertEqual(wanted_row[name], found_row[name], name)
        positions = found["results"][1]["kld_positions"]
        self.assertEqual(len(positions), found["results"][1]["positions"])
        self.assertAlmostEqual(sum(positions) / len(positions), found["results"][1]["kld_mean"])

    def test_plans_as_the_program_does(self):
        wanted = self.command("info", "-m", self.model, "--kv", KV, "-c", 2048, "-b", 3)
        # The free memory changes from moment to moment.
        for name in ("available_bytes", "max_tokens"):
            wanted.pop(name), self.found["plan"].pop(name)
        self.assertEqual(self.found["plan"], wanted)

    def test_one_name_of_a_recipe_is_one_cache_in_the_engine_and_in_front_ends(self):
        for served in self.found["served"]:
            by_name, by_text = served["by_name"], served["by_text"]
            self.assertEqual(by_name["recipe"], served["name"], served["asked"])
            self.assertEqual(by_name["plan"]["recipe"], by_text["plan"]["recipe"], served["asked"])
            self.assertEqual(by_name["plan"]["rows"], by_text["plan"]["rows"], served["asked"])

    def test_the_calibrated_plan_is_the_engine_s_in_front_ends(self):
        """The calibration file has random sensitivities. The program and the package must give each layer, KV head and
        side equal formats."""
        about, rng = self.command("info", "-m", self.model, "--kv", KV, "-c", 256), numpy.random.default_rng(3)
        layers, heads, d = about["layers"], about["kv_heads"], about["head_dim"]
        places = list(itertools.product(range(layers), range(heads), range(2)))
        name = "hadamard:sensitivity/" + "+".join(f"tcq{bits}" for bits in range(1, 7))
        constants = {(*place, name): 10 ** rng.uniform(-2, 2) * 4.0 ** -numpy.arange(6) for place in places}
        turns = numpy.stack([numpy.arange(d) ^ 1, numpy.zeros(d)], 1).reshape(-1)
        constants |= {(*place, "hadamard:page-metric"): numpy.concatenate([rng.standard_normal(8 * d), turns]) for place in places if place[2] == 0}
        path = self.folder / "constants.gguf"
        calibration_file.write(path, constants, self.found["fingerprint"])
        plan = self.command("info", "-m", self.model, "--kv", KV, "-c", 256, "--calibration", path)["plan"]
        self.assertEqual(plan["calibration"], "calibrated")
        by_program = {}
        for row in plan["rows"]:
            for layer, head in itertools.product(numbers_of(row["layers"]), numbers_of(row["kv_heads"])):
                by_program[layer, head, "KV".index(row["side"])] = [row["transforms"].split("+"), row["format"]]
        question = ("import json, sys; from kvant import _engine\n"
                    "path, kv, *numbers = sys.argv[1:]\n"
                    "geometry = _engine.Geometry(*map(int, numbers), 0.125, 2048)\n"
                    "print(json.dumps(_engine.Calibration.read(path).planned_heads(kv, geometry)))")
        found = json.loads(run(self.python, "-c", question, path, KV, layers, about["heads"], heads, d, env=self.environment))
        by_package = {(layer, head, side): found[layer][head][2 * side:2 * side + 2] for layer, head, side in places}
        self.assertEqual(by_package, by_program)
        self.assertGreater(len({format for _, format in by_package.values()}), 3)

    def test_errors_are_the_programs_sentences(self):
        done = subprocess.run([self.program, "info", "-m", self.model, "--kv", "kvant-5bit"], capture_output=True, text=True)
        self.assertEqual(done.stderr.strip(), "kvant: " + self.found["errors"]["recipe"])
        for name in ("file", "prompt", "stop", "tokens", "score", "temperature", "context", "decoded", "surrogate", "recipes", "role"):
            self.assertTrue(self.found["errors"][name], name)
        for name, message in (("messages", "messages must be a text or a list of messages"), ("fraction", "max_tokens is 2.5; it must be a whole"),
                              ("number", "temperature is 'hot'; it must be a number"), ("stop_number", "a stop text is a int; it must be a"),
                              ("path", "device is a int; it must be a str"), ("fork", "the model was opened in another process"),
                              ("fork_answer", "the completion belongs to another process")):
            self.assertIn(message, self.found["errors"][name])
        self.assertEqual(self.found["errors"]["device"], "'tpu' is not a device: use cpu, cuda, or cuda:N for GPU N")
        self.assertIn("backend='reference' selects an attention backend of the CPU", self.found["errors"]["backend"])
        with zipfile.ZipFile(self.wheel) as wheel:
            has_cuda = "kvant/lib/libkvant_cuda.so" in wheel.namelist()
        self.assertEqual("libkvant_cuda.so is neither" in self.found["errors"]["cuda"], not has_cuda)

    def test_interrupts(self):
        self.assertEqual(self.found["interrupted"], ["KeyboardInterrupt", "goes on"])


if __name__ == "__main__":
    Wheel.build_folder, Wheel.program, Wheel.model = (pathlib.Path(given).absolute() for given in sys.argv[1:])
    unittest.main(argv=sys.argv[:1], verbosity=2)
