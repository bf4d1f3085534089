"""Checks that the structures of kvant.c_api equal those of kvant.h. A C program prints where each member lies."""

import ctypes
import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest

from kvant import c_api

ROOT = pathlib.Path(__file__).resolve().parents[2]
HEADER = ROOT / "include" / "kvant" / "kvant.h"
COMPILER = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")


def layout_in_c(structs) -> dict[str, tuple[int, int]]:
    """Returns the offset and size of every member, (0, size) of every structure, and enumerators, as the C compiler
    computes them."""
    lines = []
    for struct in structs:
        lines.append(f'printf("{struct.c_name} 0 %zu\\n", sizeof({struct.c_name}));')
        for name, _ in struct._fields_:
            member = f"(({struct.c_name}*)0)->{name}"
            lines.append(f'printf("{struct.c_name}.{name} %zu %zu\\n", offsetof({struct.c_name}, {name}), sizeof({member}));')
    for name in ("KVANT_BF16", "KVANT_F32", "KVANT_F16", "KVANT_KEY", "KVANT_VALUE", "KVANT_SEALING", "KVANT_EVICTION",
                 "KVANT_VERSION"):
        lines.append(f'printf("{name} %d 0\\n", (int){name});')
    source = f'#include <stdio.h>\n#include "{HEADER}"\nint main(void) {{\n' + "\n".join(lines) + "\nreturn 0;\n}\n"
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "layout.c"
        path.write_text(source, encoding="utf-8")
        program = path.with_suffix("")
        subprocess.run([COMPILER, str(path), "-o", str(program)], check=True)
        out = subprocess.run([str(program)], check=True, capture_output=True, text=True).stdout
    return {name: (int(offset), int(size)) for name, offset, size in map(str.split, out.splitlines())}


@unittest.skipIf(COMPILER is None, "no C compiler")
class Structures(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.layout = layout_in_c(c_api.STRUCTS)

    def test_members_lie_where_the_compiler_puts_them(self):
        for struct in c_api.STRUCTS:
            self.assertEqual(self.layout[struct.c_name], (0, ctypes.sizeof(struct)), struct.c_name)
            for name, _ in struct._fields_:
                member = getattr(struct, name)
                self.assertEqual(self.layout[f"{struct.c_name}.{name}"], (member.offset, member.size),
                                 f"{struct.c_name}.{name}")

    def test_no_structure_ends_in_padding(self):
        """Padding at the end would be dangerous: a member that a later version adds there would read bytes that nobody
        set."""
        for struct in c_api.STRUCTS:
            name = struct._fields_[-1][0]
            offset, size = self.layout[f"{struct.c_name}.{name}"]
            self.assertEqual(offset + size, self.layout[struct.c_name][1], struct.c_name)

    def test_enumerators_have_the_same_values(self):
        for name, value in (("BF16", c_api.BF16), ("F32", c_api.F32), ("F16", c_api.F16), ("KEY", c_api.KEY), ("VALUE", c_api.VALUE),
                            ("SEALING", c_api.SEALING), ("EVICTION", c_api.EVICTION)):
            self.assertEqual(self.layout["KVANT_" + name][0], value)
        self.assertEqual(divmod(self.layout["KVANT_VERSION"][0], 1000), (c_api.MAJOR_VERSION, c_api.MINOR_VERSION))

    def test_every_structure_of_the_header_is_there(self):
        header = HEADER.read_text(encoding="utf-8")
        self.assertEqual(set(re.findall(r"typedef struct (\w+)", header)), {struct.c_name for struct in c_api.STRUCTS})


class Construction(unittest.TestCase):
    def test_sets_the_size_and_refuses_unknown_members(self):
        self.assertEqual(c_api.Shape(n_seqs=2).struct_size, ctypes.sizeof(c_api.Shape))
        with self.assertRaisesRegex(TypeError, "kvant_decode_shape has no member tokens"):
            c_api.Shape(tokens=1)


@unittest.skipUnless(any(path.exists() for path in c_api.library_candidates("cpu")), "libkvant_cpu is not built")
class Support(unittest.TestCase):
    def test_a_device_says_what_it_has_at_most_and_what_it_lacks(self):
        library = c_api.Library(device="cpu")
        shape = c_api.Shape(n_seqs=1, n_kv_heads=2, group=4, head_dim=128, softmax_scale=1, key_format=b"ch4g128", value_format=b"tok4g128")
        limits = library.limits(c_api.Plan(shape=shape, features=c_api.SEALING))
        self.assertEqual(limits.max_queries, 8)
        self.assertEqual(limits.features & c_api.EVICTION, 0)
        with self.assertRaisesRegex(c_api.KvantError, "KVANT_EVICTION"):
            library.limits(c_api.Plan(shape=shape, features=c_api.EVICTION))


@unittest.skipIf(COMPILER is None, "no C compiler")
class WrongLibraries(unittest.TestCase):
    def test_are_told_by_the_library_that_they_do_not_fit(self):
        """libkvant_cpu refuses callers of another major version, and of later minor ones."""
        if not any(path.exists() for path in c_api.library_candidates("cpu")):
            self.skipTest("libkvant_cpu is not built")
        library = ctypes.CDLL(str(c_api.find_library("cpu")))
        library.kvant_last_error.restype = ctypes.c_char_p
        version = library.kvant_version()
        self.assertEqual(library.kvant_check_version(version), 0)
        for other in (version + 1, version + 1000, version - 1000):
            self.assertEqual(library.kvant_check_version(other), 2, other)
            self.assertIn(b"compiled with a kvant.h of another major version", library.kvant_last_error())

    def library(self, source):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        path = pathlib.Path(folder.name) / "libkvant_cuda.so"
        subprocess.run([COMPILER, "-shared", "-fPIC", "-x", "c", "-", "-o", str(path)], input=source, text=True, check=True)
        return path

    def test_are_refused_before_anything_else_is_asked_of_them(self):
        other = f"int kvant_version(void) {{ return {1000 * (c_api.MAJOR_VERSION + 1)}; }}"
        for source, message in (("int other;", "is not a library of kvant's"),
                                (other, f"version {c_api.MAJOR_VERSION + 1}.0 of the interface, and this package needs")):
            with self.assertRaisesRegex(OSError, message):
                c_api.Library(self.library(source))


if __name__ == "__main__":
    unittest.main()
