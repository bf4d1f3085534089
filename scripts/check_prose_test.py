#!/usr/bin/env python3
"""Tests check-prose.py on texts that are written for the test."""
import importlib.util
import pathlib
import tempfile
import unittest

SCRIPT = pathlib.Path(__file__).resolve().parent / "check-prose.py"
spec = importlib.util.spec_from_file_location("check_prose", SCRIPT)
check_prose = importlib.util.module_from_spec(spec)
spec.loader.exec_module(check_prose)

LONG = " ".join(["ab"] * 31)


def kinds(name, text):
    """Returns the line and kind of each finding in a file called `name`."""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / name
        path.write_text(text, encoding="utf-8")
        advise = check_prose.advise_page if path.suffix == ".md" else check_prose.advise_source
        return [(number, kind) for number, kind, _ in advise(path)]


class Pages(unittest.TestCase):
    def test_a_sentence_may_have_thirty_words(self):
        self.assertEqual(kinds("a.md", "Word\n" + "word\n" * 28 + "word.\n"), [])
        self.assertEqual(kinds("a.md", "Word\n" + "word\n" * 29 + "word.\n"), [(1, "long sentence")])

    def test_full_stops_divide_a_paragraph(self):
        self.assertEqual(kinds("a.md", "Word" + " word" * 20 + ".\nWord" + " word" * 20 + ".\n"), [])

    def test_code_and_tables_are_no_prose(self):
        self.assertEqual(kinds("a.md", f"```\n{LONG} so that\n```\n\n| {LONG} | so that |\n"), [])

    def test_a_word_of_code_is_no_term(self):
        self.assertEqual(kinds("a.md", "Call `multiprocessors` once.\n"), [])
        self.assertEqual(kinds("a.md", "It has two multiprocessors.\n"), [(1, "term")])

    def test_a_clause_is_no_subject(self):
        self.assertEqual(kinds("a.md", "Who goes away costs nothing.\n"), [(1, "term")])
        self.assertEqual(kinds("a.md", "Who may ask?\n"), [])

    def test_lines_have_up_to_120_columns(self):
        self.assertEqual(kinds("a.md", "A" * 30 + " " + "b" * 89 + "\n"), [])
        self.assertEqual(kinds("a.md", "A" * 30 + " " + "b" * 90 + "\n"), [(1, "long line")])

    def test_code_and_generated_parts_may_have_long_lines(self):
        long = "A" * 30 + " " + "b" * 90
        self.assertEqual(kinds("a.md", f"```\n{long}\n```\n"), [])
        self.assertEqual(kinds("a.md", f"<!-- begin a -->\n{long}\n<!-- end a -->\n{long}\n"), [(4, "long line")])

    def test_a_wrapped_number_begins_no_list(self):
        self.assertEqual(kinds("a.md", "The vector has length\n1. A test compares it.\n"), [(2, "list by accident")])
        self.assertEqual(kinds("a.md", "Two steps:\n\n1. Build it,\n   and run it.\n2. Test it.\n"), [])


class Sources(unittest.TestCase):
    def test_a_comment_begins_with_a_sentence(self):
        self.assertEqual(kinds("a.h", "// Of a step, in batch order.\nint a;\n"), [(1, "fragment")])
        self.assertEqual(kinds("a.h", "// The same for V.\nint a;\n"), [(1, "fragment")])
        self.assertEqual(kinds("a.h", "// A slice holds the rows of a step.\nint a;\n"), [])

    def test_a_noun_phrase_is_reported_apart(self):
        self.assertEqual(kinds("a.h", "// The rows of a step, in batch order.\nint a;\n"), [(1, "noun phrase")])

    def test_a_comment_may_begin_with_its_verb(self):
        self.assertEqual(kinds("a.h", "// Maps rows to tiles.\nint a;\n"), [])
        self.assertEqual(kinds("a.h", "// Tiles: maps rows to tiles.\nint a;\n"), [])
        self.assertEqual(kinds("a.h", "// Two maps of rows.\nint a;\n"), [(1, "noun phrase")])

    def test_a_parameter_needs_no_verb(self):
        self.assertEqual(kinds("a.h", "// q, k [n, d]: of one head.\nint a;\n"), [])

    def test_formulas_and_headings_of_tables_need_no_verb(self):
        self.assertEqual(kinds("a.h", "// value = code * scale.\nint a;\n"), [])
        self.assertEqual(kinds("a.h", "// Bytes of a page:\n//     codes  [n]  u8.\nint a;\n"), [])

    def test_names_may_precede_the_verb(self):
        self.assertEqual(kinds("a.h", "// DeltaSlice samples rows.\nint a;\n"), [])
        self.assertEqual(kinds("a.h", "// next_row() and DeltaSlice batch rows (one by one).\nint a;\n"), [])

    def test_a_sentence_may_end_in_a_later_line(self):
        self.assertEqual(kinds("a.h", "// A slice, whatever its length and its\n// rows, holds a token.\nint a;\n"), [])

    def test_a_comment_after_code_may_continue(self):
        self.assertEqual(kinds("a.h", "int a;  // the rows of\n        // a step.\n"), [])

    def test_lines_of_comments_have_up_to_120_columns(self):
        self.assertEqual(kinds("a.py", "# It holds " + "b" * 109 + "\nx = '" + "b" * 150 + "'\n"), [])
        self.assertEqual(kinds("a.py", "# It holds " + "b" * 110 + "\n"), [(1, "long line")])

    def test_only_the_beginning_of_a_block_counts(self):
        self.assertEqual(kinds("a.cc", "// A slice holds rows.\n// In batch order.\nint a;\n"), [])

    def test_comments_of_scripts_are_read_too(self):
        self.assertEqual(kinds("a.py", "# All rows, beside others.\n"), [(1, "term"), (1, "noun phrase")])
        self.assertEqual(kinds("a", "#!/usr/bin/env bash\n# Of a step.\ntrue\n"), [(2, "fragment")])

    def test_a_shebang_makes_a_source_of_a_file_without_a_suffix(self):
        self.assertIn(SCRIPT.parent / "measure-quality", check_prose.sources())
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "a"
            path.write_text("# Of a step.\n", encoding="utf-8")
            self.assertIsNone(check_prose.comment_mark(path))
            self.assertEqual(list(check_prose.advise_source(path)), [])


if __name__ == "__main__":
    unittest.main()
