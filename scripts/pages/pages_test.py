#!/usr/bin/env python3
"""Tests the code that writes the documentation, on figures small enough to check by hand."""
import csv
import io
import json
import pathlib
import re
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from pages import c_header, command_help, front, markdown, origins, results  # noqa: E402
from pages.cpu import Cpu  # noqa: E402
from pages.gpu import Gpu  # noqa: E402
from pages.import_cpu import import_cpu, merged_cpu  # noqa: E402
from pages.import_gpu import import_gpu  # noqa: E402
from pages.layouts import Layouts, import_layouts  # noqa: E402
from pages.quality import TO, Quality  # noqa: E402
from pages.rivals import fastest  # noqa: E402
from pages.tasks import Tasks, import_tasks, merged_tasks  # noqa: E402


def folder_with(**documents):
    folder = pathlib.Path(tempfile.mkdtemp())
    for name, content in documents.items():
        results.save(folder, name, content)
    return folder


def quality_row(recipe, bits, kld):
    return {"recipe": recipe, "bits_sealed": bits, "bits_all": bits, "ppl": 18.0, "kld_mean": kld, "kld_lo": kld / 2,
            "kld_hi": 2 * kld, "kld_p999": 0.1, "top1": 0.5}


def raw_eval(text, backend, rows):
    return {"schema": "kvant.eval/1", "context": 2048, "chunks": 4, "results": rows,
            "measured": {"text": text, "backend": backend, "reference": "bf16"}}


def task_row(recipe, task, right, gained, lost):
    return {"recipe": recipe, "task": task, "depth": 0, "problems": 200, "right": right, "score": right / 200, "score_lo": 0.1,
            "score_hi": 0.9, "gained": gained, "lost": lost, "change": (gained - lost) / 200, "change_lo": -0.25,
            "change_hi": 0.05, "cut": 0, "mean_tokens": 3.5, "answers": [{"completion": "long"}]}


class TaskTables(unittest.TestCase):
    MODEL = "/x/qwen2.5-coder-1.5b-instruct-q4_k_m.gguf"

    def tables_of(self, **files):
        folder = pathlib.Path(tempfile.mkdtemp())
        for name, content in files.items():
            (folder / f"{name}.json").write_text(json.dumps({"model": self.MODEL, **content}))
        documents = import_tasks(folder, "here, 2026-01-02")
        return documents, Tasks(folder_with(tasks=documents))

    def test_scores_have_a_row_for_each_cache_and_a_column_for_each_task(self):
        run = {"schema": "kvant.tasks/1", "parallel": 64, "weights": "f32", "device": "cuda"}
        rows = [task_row("bf16", "gsm8k", 150, 0, 0), task_row("q8_0", "gsm8k", 100, 10, 60), task_row("bf16", "humaneval", 20, 0, 0)]
        documents, tables = self.tables_of(a={**run, "results": rows})
        self.assertNotIn("answers", documents[0]["results"][0])
        scores = tables.blocks()["tasks-scores"]()
        self.assertIn("| cache | HumanEval (200) | GSM8K (200) |", scores)
        self.assertIn("| `bf16` | 10.0 (10.0 - 90.0) | 75.0 (10.0 - 90.0) |", scores)
        self.assertIn("| `q8_0` | - | 50.0 (10.0 - 90.0) |", scores)
        changes = tables.blocks()["tasks-changes"]()
        self.assertNotIn("`bf16`", changes)
        self.assertIn("-25.0 (-25.0 to +5.0); +10 -60", changes)

    def test_tasks_of_another_day_fill_the_cells_that_are_empty_and_replace_others(self):
        head = {"kind": "tasks", "model": "qwen2.5-coder-1.5b", "parallel": 64, "weights": "f32", "device": "cuda"}
        old = head | {"measured_on": "here, 2026-01-02", "results": [task_row("bf16", "gsm8k", 150, 0, 0), task_row("q8_0", "gsm8k", 100, 10, 60),
                                                                     task_row("q4_0", "gsm8k", 90, 0, 60)]}
        new = head | {"measured_on": "there, 2026-01-03", "results": [task_row("bf16", "humaneval", 20, 0, 0), task_row("q8_0", "gsm8k", 102, 12, 60)]}
        merged = merged_tasks([old], [new])
        scores = Tasks(folder_with(tasks=merged)).blocks()["tasks-scores"]()
        self.assertIn("Qwen2.5-Coder-1.5B. here, 2026-01-02: `bf16` (GSM8K), `q4_0`. there, 2026-01-03: all other cells.", scores)
        self.assertIn("| `bf16` | 10.0 (10.0 - 90.0) | 75.0 (10.0 - 90.0) |\n| `q8_0` | - | 51.0 (10.0 - 90.0) |", scores)
        self.assertEqual(merged_tasks(merged, [new]), merged)

    def test_rows_of_drift_from_two_files_become_one_table(self):
        run = {"schema": "kvant.drift/1", "generated_tokens": 4, "prompts": 2, "text": "f00", "ends": [4, 4]}

        def row(recipe, kld):
            return {"recipe": recipe, "kld_mean": kld, "kld_lo": 0, "kld_hi": 1, "top1": 0.5, "plan": {},
                    "blocks": [{"first": at, "count": 2, "kld_mean": kld * (at + 1), "kld_lo": 0, "kld_hi": 1, "top1": 0.25}
                               for at in (0, 2)]}

        documents, tables = self.tables_of(a={**run, "results": [row("bf16", 0.0), row("q8_0", 0.001)]},
                                           b={**run, "results": [row("bf16", 0.0), row("q4_0", 0.1)]})
        self.assertEqual(len(documents), 1)
        drift = tables.blocks()["drift-divergence"]()
        self.assertEqual(drift.count("| cache | 0 | 2 | all |"), 1)
        self.assertIn("| `q8_0` | 0.001 | 0.003 | 0.001 (0 - 1) |", drift)
        self.assertIn("| `q4_0` | 0.1 | 0.3 | 0.1 (0 - 1) |", drift)
        self.assertIn("| `q4_0` | 25.0 | 25.0 | 50.0 |", tables.blocks()["drift-same-token"]())


    def test_needles_have_a_column_for_each_length(self):
        def row(recipe, change):
            return {"recipe": recipe, "questions": 6, "exact": 0.5, "logp": -1, "logp_change": change, "logp_lo": 2 * change,
                    "logp_hi": 0, "seconds": 1, "answers": [], "plan": {},
                    "cells": [{"context": c, "task": task, "questions": n, "exact": right / n, "logp": -1} for c, task, n, right in
                              ((8192, "passkey", 1, 1), (8192, "keys", 2, 1), (16384, "passkey", 1, 0), (16384, "keys", 2, 1))]}

        run = {"schema": "kvant.retrieval/1", "contexts": [8192, 16384], "documents": 1, "seed": 0, "text": "f00"}
        documents, tables = self.tables_of(a={**run, "results": [row("bf16", 0), row("q8_0", -0.25)]})
        self.assertNotIn("answers", documents[0]["results"][0])
        needles = tables.blocks()["needles"]()
        self.assertIn("| cache | 8,192 tokens | 16,384 tokens | change of log-probability |", needles)
        self.assertIn("| `bf16` | 2 of 3 | 1 of 3 | - |", needles)
        self.assertIn("| `q8_0` | 2 of 3 | 1 of 3 | -0.25 (-0.5 to +0) |", needles)

    def test_tasks_after_other_text_have_a_table_of_their_own(self):
        run = {"schema": "kvant.tasks/1", "parallel": 64, "weights": "f32", "device": "cuda"}
        deep = {**task_row("q8_0", "bfcl-simple", 20, 1, 2), "depth": 8192, "problems": 40, "valid_share": 0.975}
        _, tables = self.tables_of(a={**run, "results": [task_row("bf16", "gsm8k", 150, 0, 0), deep]})
        self.assertNotIn("BFCL", tables.blocks()["tasks-scores"]())
        self.assertIn("| BFCL simple | 8,192 | `q8_0` | 40 | 10.0 (10.0 - 90.0) | -0.5 (-25.0 to +5.0); +1 -2 | 97.5 |",
                      tables.blocks()["tasks-depths"]())


class Results(unittest.TestCase):
    def test_groups_of_one_run_become_one_document_without_repeated_rows(self):
        folder = pathlib.Path(tempfile.mkdtemp())
        bf16 = quality_row("bf16", 16, 0.0) | {"plan": {"not": "kept"}, "kld_blocks": [0.0]}
        for name, row in (("a", quality_row("turbo3", 3.25, 0.04)), ("b", quality_row("q8_0", 8.5, 1e-4))):
            (folder / f"{name}.json").write_text(json.dumps(raw_eval("code", "cpu", [bf16, row])))
        (folder / "other.json").write_text(json.dumps({"schema": "kvant.info/2"}))
        documents = results.import_quality(folder, "somewhere")
        self.assertEqual(len(documents), 1)
        self.assertEqual([r["recipe"] for r in documents[0]["results"]], ["bf16", "turbo3", "q8_0"])
        self.assertNotIn("plan", documents[0]["results"][0])

    def test_rows_that_are_measured_anew_replace_theirs_and_others_keep_their_place_and_day(self):
        run = {"text": "essays", "backend": "cpu", "reference": "bf16", "context": 2048, "chunks": 4}
        before = [run | {"measured_on": "2 cores, 2026-11-21, AVX-512", "results": [quality_row("a", 4, 0.2), quality_row("b", 3, 0.3)]},
                  run | {"chunks": 8, "measured_on": "2 cores, 2026-11-21", "results": [quality_row("a", 4, 0.4)]}]
        after = [run | {"measured_on": "4 cores, 2026-11-25", "results": [quality_row("a", 4, 0.1)]},
                 run | {"model": "gemma-3-270m", "measured_on": "4 cores, 2026-11-25", "results": [quality_row("b", 4, 0.5)]}]
        merged = results.merged_quality(before, after)
        self.assertEqual(merged[2], after[1])
        self.assertEqual(merged[0]["measured_on"], "4 cores, 2026-11-25")
        self.assertEqual(merged[0]["results"],
                         [quality_row("a", 4, 0.1), quality_row("b", 3, 0.3) | {"measured_on": "2 cores, 2026-11-21, AVX-512"}])
        self.assertEqual(merged[1], before[1])
        self.assertEqual(results.merged_quality(merged, after), merged)

    def test_a_few_new_rows_leave_a_document_its_day_and_have_their_own(self):
        run = {"text": "essays", "backend": "cpu", "reference": "bf16", "context": 2048, "chunks": 8}
        old = run | {"measured_on": "2 cores, 2026-11-21", "results": [quality_row(name, 4, 0.2) for name in ("a", "b")]}
        new = run | {"measured_on": "4 cores, 2026-11-25", "results": [quality_row("c", 4, 0.1)]}
        merged = results.merged_quality([old], [new])
        self.assertEqual(merged, [old | {"results": [*old["results"], quality_row("c", 4, 0.1) | {"measured_on": "4 cores, 2026-11-25"}]}])
        merged[0]["text"] = "wikitext-2"
        quality = Quality(folder_with(quality=merged))
        self.assertEqual([quality.rows()[name]["day"] for name in ("a", "c")], ["2026-11-21", "2026-11-25"])
        self.assertEqual(
            origins.places([("SmolLM2-135M", quality.rows())]),
            "SmolLM2-135M: 8 contexts, attention on the CPU, 2 cores, 2026-11-21. Exceptions:\n\n"
            "- `c`: 8 contexts, attention on the CPU, 4 cores, 2026-11-25.\n\n")

    def test_what_is_saved_is_loaded(self):
        document = {"kind": "model", "results": [{"recipe": "bf16", "depth": 0}, {"recipe": "q8_0", "depth": 0}]}
        folder = folder_with(cpu=[document, document])
        self.assertEqual(results.load(folder, "cpu"), [document, document])
        self.assertEqual(results.load(folder, "none"), [])


class Rivals(unittest.TestCase):
    ROWS = [{"recipe": "bf16", "ctx": 9, "bits": 16.0, "us": 50.0}, {"recipe": "q4_0-h", "ctx": 9, "bits": 4.5, "us": 10.0},
            {"recipe": "ggml:f16", "ctx": 9, "us": 100.0}, {"recipe": "ggml:f16-plain", "ctx": 9, "us": 60.0},
            {"recipe": "ggml:q8_0", "ctx": 9, "us": 40.0}, {"recipe": "ggml:q4_0", "ctx": 9, "us": 90.0},
            {"recipe": "ggml:q8_0", "ctx": 8, "us": 1.0}]

    @staticmethod
    def imported(files):
        folder = pathlib.Path(tempfile.mkdtemp())
        for name, content in files.items():
            (folder / f"{name}.json").write_text(json.dumps(content))
        return import_cpu(folder, "here")

    def attention(self, **more):
        shape = {"heads": 9, "kv_heads": 3, "dim": 64, "threads": 2, "repeats": 5, "read_gbps": 40.0}
        raw = {"schema": "kvant.bench.attention/2", **shape, "results": self.ROWS}
        files = {"attention-9-3-64-avx512-0": raw}
        if more:
            files["onnxruntime-9-3-64"] = {"schema": "kvant.bench.onnxruntime/1", **shape, "results": [more]}
        return {row["recipe"]: row.get("rival") for row in self.imported(files)[0]["results"] if row["ctx"] == 9}

    def test_a_ratio_is_to_the_fastest_rival_of_at_least_as_many_bits_at_that_context(self):
        self.assertEqual(self.attention(), {"bf16": "ggml:f16-plain", "q4_0-h": "ggml:q8_0", "ggml:f16": None,
                                            "ggml:f16-plain": None, "ggml:q8_0": None, "ggml:q4_0": None})

    def test_programs_measured_apart_compete_too(self):
        rivals = self.attention(recipe="onnxruntime:int8", ctx=9, bits=8.0, us=30.0)
        self.assertEqual((rivals["bf16"], rivals["q4_0-h"]), ("ggml:f16-plain", "onnxruntime:int8"))

    def test_a_model_has_a_table_for_each_number_of_threads_with_a_column_for_each_depth(self):
        def raw(threads, depth, own, rival):
            return {"schema": "kvant.bench/1", "model": "/m/smollm2-135m-instruct.gguf", "prompt": 0, "threads": threads,
                    "repeats": 5, "results": [
                        {"recipe": "kvant-4bit", "depth": depth, "bits": 4.7, "decode_tps": own,
                         "decode_rival": "llama.cpp:f16", "decode_ratio": own / rival},
                        {"recipe": "llama.cpp:f16", "depth": depth, "decode_tps": rival}]}
        two, sixteen = self.imported({"model-2-64": raw(2, 64, 90.0, 45.0), "model-2-0": raw(2, 0, 99.0, 90.0),
                                      "model-16-0": raw(16, 0, 300.0, 100.0)})
        self.assertEqual((two["model"], two["threads"], sixteen["threads"]), ("SmolLM2-135M", 2, 16))
        text = Cpu(folder_with(cpu=[two])).model()
        self.assertIn("| cache | 0 tokens deep | 64 tokens deep |", text)
        self.assertIn("| `kvant-4bit` | 99.0 (1.10x `f16`) | 90.0 (2.00x `f16`) |", text)

    def test_what_was_measured_again_on_the_same_machine_is_replaced(self):
        def measured(where, backend, us):
            return {"kind": "attention", "heads": 9, "backend": backend, "measured_on": where, "us": us}
        known = [measured("A, 2026-11-22", "cpu/avx2", 1), measured("B, 2026-11-22", "cpu/avx2", 2), {"kind": "table"}]
        new = [measured("A, 2026-11-30", "cpu/avx2", 3)]
        self.assertEqual(merged_cpu(known, new), [known[1], new[0], known[2]])

    def test_the_page_shows_the_machine_that_was_measured_last_and_the_csv_file_shows_all(self):
        def measured(where, us):
            return {"kind": "attention", "heads": 9, "kv_heads": 3, "dim": 64, "backend": "cpu/avx2", "measured_on": where,
                    "command": "bench", "threads": 2, "repeats": 10, "read_gbps": 20.0,
                    "results": [{"recipe": "bf16", "ctx": 16384, "bits": 16.0, "us": us}]}
        cpu = Cpu(folder_with(cpu=[measured("A, 2026-11-30", 700.0), measured("B, 2026-11-29", 800.0),
                                   measured("C, 2026-11-30", 900.0)]))
        self.assertEqual([us for us in ("700", "800", "900") if f"| {us} |" in cpu.attention()], ["900"])
        self.assertEqual([line.split(",")[-1] for line in cpu.attention_csv().splitlines()], ["machine", "A", "B", "C"])

    def test_a_rival_without_a_figure_is_passed_over(self):
        rows = [{"recipe": "llama.cpp:f16", "decode_tps": None}, {"recipe": "llama.cpp:q8_0", "decode_tps": 3.0}]
        self.assertEqual(fastest(rows, 4.5, lambda r: r["decode_tps"]), rows[1])
        self.assertIsNone(fastest(rows, 17, lambda r: r["decode_tps"]))

    def test_the_gpu_table_divides_by_the_fastest_rival_too(self):
        document = {"kind": "decode", "dim": 128, "shapes": ["8, 128k"], "measured_on": "here", "command": "bench", "results": [
            {"name": "cuDNN", "bits": 16, "rival": True, "us": [950.0]}, {"name": "FP8", "bits": 8, "rival": True, "us": [600.0]},
            {"name": "tcq4+tcq4", "bits": 4.2, "us": [300.0], "limit_percent": [87.0]}]}
        text = Gpu(folder_with(gpu=[document])).decode(128)
        self.assertIn("| `tcq4` + `tcq4` | 4.20 | 300.0 (3.17x, 2.00x, 87 %) |", text)

    def test_the_gpu_csv_has_formats_that_the_page_leaves_out(self):
        document = {"kind": "decode", "dim": 128, "shapes": ["8, 128k", "9, 9k"], "measured_on": "here, 2026-11-21", "command": "bench",
                    "results": [{"name": "cuDNN", "bits": 16, "rival": True, "us": [900.0, None]},
                                {"name": "lm9+lm9", "bits": 9.1, "us": [300.0, 5.0], "limit_percent": [50.0, 60.0]}]}
        gpu = Gpu(folder_with(gpu=[document]))
        self.assertNotIn("lm9", gpu.decode(128))
        self.assertEqual(gpu.decode_csv().splitlines()[1:], [
            "128,cuDNN,,16,8,128k,900.0,,,,2026-11-21", "128,lm9+lm9,,9.1,8,128k,300.0,3.000,,50.0,2026-11-21",
            "128,lm9+lm9,,9.1,9,9k,5.0,,,60.0,2026-11-21"])

    def test_whole_models_on_the_gpu_are_compared_at_their_depth_and_batch(self):
        def row(recipe, sequences, depth, tps):
            return {"recipe": recipe, "sequences": sequences, "depth": depth, "decode_tps": tps}
        document = {"kind": "whole_model", "title": "8B", "command": "kvant bench", "measured_on": "here", "rate": "decode_tps",
                    "baseline": "llama.cpp:f16", "results": [
                        row("llama.cpp:f16", 1, 0, 300.0), row("kvant-4bit", 1, 0, 297.0), row("llama.cpp:f16", 8, 32768, 400.0),
                        row("kvant-4bit", 8, 32768, 800.0), row("kvant-4bit", 32, 32768, 1600.0)]}
        text = Gpu(folder_with(gpu=[document])).blocks()["gpu-8b"]()
        self.assertIn("| sequences | depth | `llama.cpp:f16` | `kvant-4bit` |", text)
        self.assertIn("| 1 | 0 | 300.0 | 297.0 (0.99x) |", text)
        self.assertIn("| 8 | 32,768 | 400.0 | 800.0 (2.00x) |", text)
        self.assertIn("| 32 | 32,768 | - | 1,600.0 |", text)

    def test_rows_of_the_gpu_keep_the_best_round_of_rivals_and_recipes_apart(self):
        shape = {"head_dim": 128, "seqs": 8, "context": 131072, "bytes": 4617000}
        rows = [{"what": "cuDNN", "options": "", "us": 12.0, "least_us": 10.0, "bits": 16, **shape},
                {"what": "kvant lm3+lm3", "options": "--head-dim 128", "us": 5.0, "bits": 3.1, **shape},
                {"what": "kvant lm3+lm3", "options": "--rotate qo --tail 64", "us": 8.0, "bits": 3.2, **shape}]
        folder = pathlib.Path(tempfile.mkdtemp())
        (folder / "rows.json").write_text("\n".join(json.dumps(row) for row in rows))
        document, = import_gpu(folder, "here")
        self.assertEqual([(r["name"], r.get("recipe"), r["us"], r["limit_percent"]) for r in document["results"]],
                         [("cuDNN", None, [10.0], [26.0]), ("lm3+lm3", None, [5.0], [52.0]),
                          ("lm3+lm3", "turbo3", [8.0], [32.5])])


class HeadLayouts(unittest.TestCase):
    def test_each_layout_and_shape_is_compared_with_bf16_of_the_same_run(self):
        path = pathlib.Path(tempfile.mkdtemp()) / "rows.json"
        row = {"head_dim": 128, "kv_heads": 2, "group": 6, "seqs": 1, "context": 2048, "limit_us": 1.5}
        rows = [row | {"what": "kvant bf16+bf16", "us": 9.0}, row | {"what": "kvant tcq4+tcq4", "us": 10.0},
                row | {"what": "kvant tcq4+tcq4", "us": 99.0, "context": 512}, row | {"what": "kvant fp8+fp8", "us": 1.0},
                {k: v for k, v in row.items() if k != "limit_us"} | {"what": "torch SDPA cudnn, BF16", "us": 7.2}]
        path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
        layouts = Layouts(import_layouts(path, "An H200, 2026-11-29."))
        self.assertIn("| 12/2/128 | - | 0.90x |", layouts.page())
        self.assertIn("| 12/2/128 | - | 0.80x |", layouts.page())
        self.assertEqual([line.split(",")[3:5] for line in layouts.csv().splitlines()[1:]],
                         [["bf16", "9.0"], ["uniform-4bit", "10.0"], ["uniform-4bit", "99.0"], ["PyTorch (cuDNN)", "7.2"]])

    def test_cells_that_were_measured_again_have_their_own_day(self):
        path = pathlib.Path(tempfile.mkdtemp()) / "rows.json"
        row = {"head_dim": 128, "kv_heads": 2, "group": 6, "seqs": 1, "context": 2048, "limit_us": 1.5}
        rows = [row | {"what": "kvant bf16+bf16", "us": 9.0}, row | {"what": "kvant bf16+bf16", "us": 8.0, "context": 512},
                row | {"what": "kvant tcq4+tcq4", "us": 10.0}]
        path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
        before = import_layouts(path, "An H200, 2026-11-29.")
        path.write_text(json.dumps(rows[2] | {"us": 6.0}), encoding="utf-8")
        merged, = results.merged([before], [import_layouts(path, "An H200, 2026-11-30.")], lambda document: document["kind"])
        layouts = Layouts(merged)
        self.assertIn("| 12/2/128 | - | 1.50x |", layouts.page())
        self.assertIn("Another run measured 12/2/128 with uniform-4bit, at 1 of 2 shapes. An H200, 2026-11-30.", layouts.page())
        self.assertEqual([line.split(",")[4::2] for line in layouts.csv().splitlines()[1:]],
                         [["9.0", "2026-11-29"], ["8.0", "2026-11-29"], ["6.0", "2026-11-30"]])


class QualityTables(unittest.TestCase):
    @staticmethod
    def run_of(text, backend, rows, **more):
        return {"text": text, "backend": backend, "reference": "bf16", "context": 2048, "chunks": 8, "measured_on": "here, 2026-11-21",
                "results": rows} | more

    def quality(self, *more):
        rows = [quality_row("bf16", 16, 0.0), quality_row("turbo3", 3.25, 0.04), quality_row("q8_0", 8.5, 1.3e-5)]
        here_alone = quality_row("turbo4", 4.25, 0.01)
        return Quality(folder_with(quality=[
            self.run_of("wikitext-2", "reference", rows), self.run_of("wikitext-2", "cpu", [*rows[:2], here_alone], chunks=4),
            self.run_of("code", "reference", [rows[0], quality_row("turbo3", 3.25, 0.02)]), *more]))

    def on_gpu(self, *rows, **more):
        return self.run_of("wikitext-2", "cuda", list(rows), measured_on="H200, 2026-11-29", **more)

    def test_rows_are_sorted_by_bits(self):
        lines = [line for line in self.quality().recipes().split("\n") if line.startswith("| `")]
        self.assertEqual([line.split("`")[1] for line in lines], ["bf16", "q8_0", "turbo4", "turbo3"])
        self.assertIn("| 1.3e-05<br>", lines[1])

    def test_a_row_of_the_gpu_counts_before_those_of_other_days_which_say_theirs(self):
        quality = self.quality(self.on_gpu(quality_row("turbo3", 3.3, 0.05)))
        rows = quality.rows()
        self.assertEqual((rows["turbo3"]["kld_mean"], rows["turbo3"]["day"], rows["q8_0"]["day"]), (0.05, "2026-11-29", "2026-11-21"))
        text = quality.recipes()
        self.assertIn(f"| `turbo3` | 3.30 | - | 0.05<br>0.025{TO}0.1 | 8, GPU,<br>2026-11-29 | - | - |", text)
        self.assertIn(f"| `q8_0` | 8.50 | - | 1.3e-05<br>6.5e-06{TO}2.6e-05 | 8, reference,<br>2026-11-21 | - | - |", text)

    def test_each_figure_has_its_own_contexts_machine_and_command(self):
        longer = self.run_of("wikitext-2", "reference", [quality_row("turbo3", 3.2, 0.06)], context=8192, chunks=3,
                             measured_on="4 cores, 2026-11-21")
        earlier = quality_row("turbo2", 2.75, 0.2) | {"measured_on": "2 cores, 2026-11-20"}
        text = self.quality(self.on_gpu(quality_row("turbo3", 3.3, 0.05), earlier), longer).recipes()
        self.assertIn(f"| `turbo3` | 3.30 | - | 0.05<br>0.025{TO}0.1 | 8, GPU,<br>2026-11-29 | 0.06<br>n = 3 | 3, reference,<br>2026-11-21 |", text)
        self.assertIn("-c 8192 --chunks 3 --backend reference", text)
        self.assertIn("| GPU, 2026-11-29 | H200 |", text)
        self.assertIn("| GPU, 2026-11-20 | 2 cores |", text)
        self.assertIn("| reference, 2026-11-21 | here; `turbo3`: 4 cores |", text)

    def test_recipes_of_several_values_and_controls_are_not_among_the_built_in_ones(self):
        quality = self.quality(self.on_gpu(quality_row("turbo3", 3.3, 0.05), quality_row("turbo3,sink=4", 3.4, 0.04),
                                           quality_row("window=128,sink=4,evict=1", 1.6, 0.4)))
        self.assertNotIn("sink=4", quality.recipes())
        self.assertEqual([line.split("`")[1] for line in quality.controls().split("\n") if line.startswith("| `")],
                         ["window=128,sink=4,evict=1"])

    def test_the_csv_file_has_the_rows_of_all_models_texts_and_recipes(self):
        quality = self.quality(self.on_gpu(quality_row("turbo3,sink=4", 3.4, 0.04), model="qwen2.5-coder-1.5b"))
        rows = list(csv.DictReader(io.StringIO(quality.csv())))
        self.assertEqual([(r["model"], r["text"], r["recipe"], r["backend"], r["contexts"]) for r in rows], [
            ("qwen2.5-coder-1.5b", "wikitext-2", "turbo3,sink=4", "cuda", "8"),
            ("smollm2-135m", "wikitext-2", "bf16", "reference", "8"), ("smollm2-135m", "wikitext-2", "q8_0", "reference", "8"),
            ("smollm2-135m", "wikitext-2", "turbo4", "cpu", "4"), ("smollm2-135m", "wikitext-2", "turbo3", "reference", "8"),
            ("smollm2-135m", "code", "bf16", "reference", "8"), ("smollm2-135m", "code", "turbo3", "reference", "8")])
        self.assertEqual((rows[0]["kld_mean"], rows[0]["day"], rows[0]["machine"], rows[0]["constant_bytes"]), ("0.04", "2026-11-29", "H200", ""))

    def test_fewer_than_eight_contexts_have_no_interval(self):
        lines = {line.split("`")[1]: line for line in self.quality().recipes().split("\n") if line.startswith("| `")}
        self.assertIn(f"<br>0.02{TO}0.08 |", lines["turbo3"])
        self.assertIn("<br>n = 4 |", lines["turbo4"])

    def test_rows_of_llama_cpp_are_those_against_its_own_cache_and_no_others(self):
        theirs = self.on_gpu(quality_row("llama.cpp:q4_0", 4.5, 0.06), quality_row("q8_0", 8.5, 0.5), reference="llama.cpp:f16")
        rows = self.quality(theirs).rows()
        self.assertEqual((rows["llama.cpp:q4_0"]["kld_mean"], rows["q8_0"]["kld_mean"]), (0.06, 1.3e-5))

    def test_models_stand_side_by_side_and_kinds_of_recipes_apart(self):
        quality = self.quality(self.on_gpu(quality_row("kvant-4bit", 5.04, 0.0005), quality_row("turbo3", 3.6, 3.3), model="qwen2.5-coder-1.5b"))
        text = quality.main(2048)
        self.assertIn("| cache | Qwen2.5-Coder-1.5B: bits | mean KLD,<br>95 % interval |", text)
        self.assertIn("| **kvant, calibrated** | ", text)
        self.assertIn(f"| `kvant-4bit` | 5.04 | 0.0005<br>0.00025{TO}0.001 | - | - |", text)
        self.assertIn(f"| `turbo3` | 3.60 | 3.3<br>1.65{TO}6.6 | 3.25 | 0.04<br>", text)
        self.assertIn("Exceptions:\n\n- `turbo4`: 4 contexts, attention on the CPU, the same machine and day.", text)

    def test_names_say_one_recipe_whatever_their_order(self):
        from pages.quality import name_of
        self.assertEqual(name_of("kivi-4bit,window=0,tail=tok4g32s"), name_of("kivi-4bit,tail=tok4g32s,window=0"))
        self.assertEqual(name_of("k=hadamard:tcq4,v=hadamard:tcq4,sink=4"), "uniform-4bit")
        self.assertEqual(name_of("k=ch4g128,v=tok4g128"), "k=ch4g128,v=tok4g128")

    def test_equal_tails_are_columns(self):
        quality = self.quality(self.on_gpu(quality_row("q4_0-h", 4.9, 0.005), quality_row("q4_0-h,tail=tok4g32s", 4.5, 0.03)))
        self.assertIn("| SmolLM2-135M | 2,048 | `q4_0-h` | 0.03 at 4.50 bits | 0.005 at 4.90 bits | - |", quality.tails())

    def test_the_fast_backend_stands_beside_the_reference(self):
        text = self.quality(self.on_gpu(quality_row("turbo3", 3.3, 0.05))).backends()
        self.assertIn("| `turbo3` | 3.25 | 0.05<br>8, 2026-11-29 | 0.04<br>8, 2026-11-21 | 0.04<br>4, 2026-11-21 | n = 4 |", text)
        self.assertNotIn("turbo4", text)

    def test_other_texts_are_columns(self):
        self.assertIn("| recipe | WikiText-2 (8) | C++ code (8) |", self.quality().domains())
        self.assertIn("| `turbo3` | 0.04 | 0.02 |", self.quality().domains())

    def test_long_contexts_of_other_texts_have_intervals_and_tails(self):
        quality = self.quality()
        self.assertEqual(quality.domains(8192), "Not measured yet.\n")
        quality.runs[-1]["context"] = 8192
        self.assertIn(f"| `turbo3` | 0.02 (0.01{TO}0.04); 0.1 |", quality.domains(8192))

    def test_a_stored_cache_stands_beside_the_one_that_it_is_made_of(self):
        quality = self.quality()
        quality.runs.append(quality.runs[0] | {"backend": "stored", "results": [
            quality_row("bf16", 16, 0.0), {"recipe": "compact:turbo3", "bits_all": 2.5, "bits_sealed": 2.25},
            quality_row("kvtc:2", 2.0, 0.3)]})
        lines = [line for line in quality.stored(2048).split("\n") if line.startswith("| `")]
        self.assertEqual([line.split("`")[1] for line in lines], ["turbo3", "compact:turbo3", "kvtc:2"])
        self.assertTrue(lines[1].startswith("| `compact:turbo3` | 2.50 | 2.25 | - | 8,<br>2026-11-21 | 0.04<br>"))
        self.assertTrue(lines[2].endswith("| 8, reference,<br>2026-11-21 |"))

    def test_constants_are_given_in_bytes_and_bits(self):
        row = quality_row("vecinfer-1.5bit", 2.4, 0.25) | {"constant_bytes": 3 * 2**20, "constant_bits": 0.0625}
        from pages.quality import size
        self.assertEqual(size(row), "3.0 MiB (0.06)")


class Pages(unittest.TestCase):
    def test_only_what_is_between_the_marks_changes(self):
        page = "before\n<!-- begin a: x -->\nold\n<!-- end a -->\nafter <!-- begin b -->\nkept<!-- end b -->"
        text, unknown = markdown.filled(page, {"a": lambda: "new\n"})
        self.assertEqual(text, page.replace("old", "new"))
        self.assertEqual(unknown, ["b"])


class Speeds(unittest.TestCase):
    ROW = ("attention on an H200", "`uniform-4bit`", "282 us: 3.36x", "4.17", "0.0016", "Qwen2.5-Coder-1.5B, 8,192 tokens", "2026-11-27")

    @staticmethod
    def page(*rows, outside=""):
        return f"# kvant\n{outside}\n<!-- begin readme-speed: x -->\n{markdown.table(front.SPEED_HEADER, rows)}<!-- end readme-speed -->\n"

    def test_a_row_with_all_that_belongs_to_a_speed_is_in_order(self):
        self.assertEqual(front.faults_of_speeds(self.page(self.ROW)), [])

    def test_a_row_that_lacks_bits_divergence_model_or_date_is_a_fault(self):
        for column, what in ((3, "bits"), (4, "a KLD"), (5, "a model"), (6, "a date")):
            for cell in ("", "-", "not measured"):
                row = [*self.ROW[:column], cell, *self.ROW[column + 1:]]
                self.assertEqual(front.faults_of_speeds(self.page(self.ROW, row)), [f"`uniform-4bit`, attention on an H200: lacks {what}"])

    def test_a_speed_outside_the_table_is_a_fault_and_so_is_no_table(self):
        for line in ("kvant is 3.4x as fast.", "It decodes 40 tokens/s.", "Attention takes 4.6 ms."):
            self.assertEqual(front.faults_of_speeds(self.page(self.ROW, outside=line)), [f"a speed outside the table: {line}"])
        self.assertEqual(len(front.faults_of_speeds("# kvant\n")), 1)
        self.assertEqual(len(front.faults_of_speeds(self.page(self.ROW).replace("| date of the speed |", "| day |"))), 1)

    def test_the_readme_is_in_order(self):
        readme = pathlib.Path(__file__).resolve().parents[2] / "README.md"
        self.assertEqual(front.faults_of_speeds(readme.read_text(encoding="utf-8")), [])

    def test_engine_and_cache_gain_stand_apart_with_the_quality_of_the_same_recipe(self):
        def row(recipe, depth, tps):
            return {"recipe": recipe, "sequences": 1, "depth": depth, "decode_tps": tps}
        models = {"kind": "whole_model", "title": "8B", "command": "x", "measured_on": "H200, 2026-11-26", "rate": "decode_tps",
                  "baseline": "llama.cpp:f16", "bits": {"32768": "4.16"}, "results": [
                      row("llama.cpp:f16", 32768, 100.0), row("bf16", 32768, 110.0), row("uniform-4bit", 32768, 124.0)]}
        quality = {"model": "qwen2.5-coder-1.5b", "text": "wikitext-2", "backend": "cuda", "reference": "bf16", "context": 8192, "chunks": 8,
                   "measured_on": "H200, 2026-11-29", "results": [quality_row("uniform-4bit", 4.24, 0.002)]}
        folder = folder_with(gpu=[models], quality=[quality])
        text = front.Front(Quality(folder), Cpu(folder), Gpu(folder)).speeds()
        self.assertIn("| `uniform-4bit` | 124 tokens/s: 1.24x `llama.cpp:f16`, 1.13x kvant's own `bf16` | 4.16 | 0.002 | "
                      "Qwen2.5-Coder-1.5B, 8 contexts of 8,192 tokens, 4.24 bits there, 2026-11-29 | 2026-11-26 |", text)


class Version(unittest.TestCase):
    def test_what_cites_or_announces_the_version_has_that_of_the_package(self):
        root = pathlib.Path(__file__).resolve().parents[2]
        read = lambda name: (root / name).read_text(encoding="utf-8")
        version = re.search(r'^__version__ = "(\d+\.\d+\.\d+)"$', read("python/kvant/__init__.py"), re.MULTILINE).group(1)
        self.assertIn(f"\nversion: {version}\n", read("CITATION.cff"))
        self.assertIn(f"  version = {{{version}}},", read("docs/README.md"))
        newest = re.search(r"^## (\S+)", read("CHANGELOG.md"), re.MULTILINE).group(1)
        self.assertEqual(f"{newest}.0" if newest.count(".") == 1 else newest, version)


class ReferencePages(unittest.TestCase):

    def test_options_are_read_whether_or_not_their_names_fit_the_column(self):
        text = ("measure it\nUsage: kvant x [OPTIONS]\n\nOptions:\n  -h,--help                         Print this\n"
                "  -t,--threads INT:INT in [1 - 1024]=2\n                                    threads\n"
                "  --temp FLOAT=0.5                  temperature\n  -m,--model TEXT REQUIRED          model\n"
                "\nRecipes for --kv: many\n  bf16  plain\n")
        summary, usage, options = command_help.parsed(text)
        self.assertEqual((summary, usage), ("measure it", "kvant x [OPTIONS]"))
        self.assertEqual(options, [("-t,--threads", "threads", "processors", False), ("--temp", "temperature", "0.5", False),
                                   ("-m,--model", "model", "", True)])

    def test_a_header_becomes_sections_with_their_comments(self):
        header = ("/* A library. */\n#define KVANT_API\n#endif\n\n/* Adds\n * one:\n *\n *   y = x\n *     + 1\n *\n * Always. */\n"
                  "KVANT_API int kvant_one(int x);\n\n"
                  "typedef struct kvant_two {\n  int a; /* first */\n\n  int b;\n} kvant_two;\n\n#ifdef __cplusplus\n}\n#endif\n")
        page = c_header.page(header)
        self.assertIn("## kvant_one\n\nAdds one:\n\n```\ny = x\n  + 1\n```\n\nAlways.\n\n```c\nKVANT_API int kvant_one(int x);\n```", page)
        self.assertIn("## kvant_two\n\n```c\ntypedef struct kvant_two {\n  int a; /* first */\n\n  int b;\n} kvant_two;\n```", page)


unittest.main()
