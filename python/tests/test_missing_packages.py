"""Tests the messages of modules that are imported without the packages that they need."""

import subprocess
import sys
import unittest


def message_of(imported: str, before: str) -> str:
    """Returns the last line of a process that imports a module after the statements in `before`."""
    done = subprocess.run([sys.executable, "-c", f"import sys\n{before}\nimport {imported}"], capture_output=True, text=True)
    return done.stderr.strip().rpartition("\n")[2]


class MissingPackages(unittest.TestCase):
    def test_are_named_with_what_installs_them(self):
        without_torch = "sys.modules['torch'] = None"
        self.assertIn("kvant.torch needs PyTorch, which is not installed: pip install torch", message_of("kvant.torch", without_torch))
        self.assertIn("torch is not installed: pip install torch \"transformers>=5,<6\"", message_of("kvant.hf", without_torch))

    def test_another_transformers_is_refused_with_its_version(self):
        older = ("import types\nsys.modules |= {'torch': types.ModuleType('torch'), 'transformers': types.ModuleType('transformers')}\n"
                 "sys.modules['transformers'].__version__ = '4.57.1'")
        self.assertIn("kvant.hf needs transformers 5, not 4.57.1", message_of("kvant.hf", older))


if __name__ == "__main__":
    unittest.main()
