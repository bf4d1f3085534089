#!/usr/bin/env python3
"""Writes the generated parts of README.md and docs/ from the measured results.

    scripts/tables.py docs/results                       rewrite all tables and CSV files
    scripts/tables.py docs/results --check               say what is not current, change nothing
    scripts/tables.py docs/results --quality FOLDER      first import what scripts/measure-quality left in FOLDER
    scripts/tables.py docs/results --cpu FOLDER          first import what scripts/bench-cpu.sh left in FOLDER
    scripts/tables.py docs/results --gpu FOLDER          first import rows of scripts/gpu-bench and gpu-fp8-rivals.py
    scripts/tables.py docs/results --tasks FOLDER    first import what kvant eval --tasks and --drift left in FOLDER
    scripts/tables.py docs/results --layouts FILE    first import rows of scripts/gpu-layouts
    scripts/tables.py docs/results --bits MODEL.gguf     first compute bits by context with build/default/kvant

`make plots` then draws the pictures. Imported results replace older ones. --measured-on describes them in a line about
machine and date.
"""
import argparse
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from pages import markdown, results  # noqa: E402
from pages.bits import Bits  # noqa: E402
from pages.cpu import Cpu  # noqa: E402
from pages.front import Front  # noqa: E402
from pages.gpu import Gpu  # noqa: E402
from pages.import_bits import import_bits  # noqa: E402
from pages.import_cpu import import_cpu, merged_cpu  # noqa: E402
from pages.import_gpu import import_gpu  # noqa: E402
from pages.layouts import import_layouts  # noqa: E402
from pages.quality import NOTHING, Quality  # noqa: E402
from pages.tasks import Tasks, import_tasks, merged_tasks  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parent.parent


def pages():
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "docs/guide").glob("*.md")),
            *sorted((ROOT / "docs/results").glob("*.md"))]


def generated(folder):
    """Yields the path and text of every file with a generated part."""
    quality, cpu, gpu = Quality(folder), Cpu(folder), Gpu(folder)
    front, bits = Front(quality, cpu, gpu), Bits(folder)
    blocks = {**quality.blocks(), **cpu.blocks(), **gpu.blocks(), **front.blocks(), **bits.blocks(), **Tasks(folder).blocks()}
    files = {ROOT / "docs/results/quality.csv": quality.csv(), ROOT / "docs/results/gpu-decode.csv": gpu.decode_csv(),
              ROOT / "docs/results/gpu-models.csv": gpu.models_csv(), ROOT / "docs/results/gpu-layouts.csv": gpu.layouts_csv(),
              ROOT / "docs/results/cpu-attention.csv": cpu.attention_csv()}
    shown = set()
    for path in pages():
        before = path.read_text(encoding="utf-8")
        text, unknown = markdown.filled(before, blocks)
        shown |= {name for _, name, _, _ in markdown.BLOCK.findall(before)}
        if unknown:
            sys.exit(f"{path.relative_to(ROOT)} has a block that nothing makes: {', '.join(unknown)}; there are "
                     f"{', '.join(sorted(blocks))}")
        files[path] = text
    unseen = [name for name in sorted(set(blocks) - shown) if blocks[name]() not in ("", NOTHING)]
    # Every measurement must appear on a page.
    if unseen:
        sys.exit(f"no page shows {', '.join(unseen)}: write <!-- begin NAME --> and <!-- end NAME --> where it belongs")
    return files


def take_over(options):
    if options.quality:
        measured = results.import_quality(options.quality, options.measured_on)
        results.save(options.results, "quality", results.merged_quality(results.load(options.results, "quality"), measured))
    if options.bits:
        results.save(options.results, "bits", import_bits(str(ROOT / "build/default/kvant"), options.bits))
    if options.gpu:
        # Tables that were written by hand stay.
        tables = [d for d in results.load(options.results, "gpu") if d["kind"] in ("table", "whole_model", "layouts")]
        results.save(options.results, "gpu", import_gpu(options.gpu, options.measured_on) + tables)
    if options.cpu:
        measured = import_cpu(options.cpu, options.measured_on)
        results.save(options.results, "cpu", merged_cpu(results.load(options.results, "cpu"), measured))
    if options.tasks:
        measured = import_tasks(options.tasks, options.measured_on)
        results.save(options.results, "tasks", merged_tasks(results.load(options.results, "tasks"), measured))
    if options.layouts:
        measured = import_layouts(options.layouts, options.measured_on)
        known = results.load(options.results, "gpu")
        results.save(options.results, "gpu", results.merged(known, [measured], lambda document: document["kind"] == "layouts"))


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=pathlib.Path)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--quality", type=pathlib.Path)
    parser.add_argument("--cpu", type=pathlib.Path)
    parser.add_argument("--gpu", type=pathlib.Path)
    parser.add_argument("--layouts", type=pathlib.Path)
    parser.add_argument("--tasks", type=pathlib.Path)
    parser.add_argument("--bits", metavar="MODEL.gguf")
    parser.add_argument("--measured-on", default="")
    options = parser.parse_args()
    if (options.quality or options.cpu or options.gpu or options.tasks or options.layouts) and not options.measured_on:
        parser.error("say where and when it was measured: --measured-on '2 cores of ..., 2026-11-22'")
    return options


def main():
    options = parse()
    take_over(options)
    stale = [path for path, text in generated(options.results).items()
             if not path.exists() or path.read_text(encoding="utf-8") != text]
    if options.check:
        if stale:
            names = ", ".join(str(path.relative_to(ROOT)) for path in stale)
            sys.exit(f"not what scripts/tables.py docs/results writes: {names}")
        return
    for path, text in generated(options.results).items():
        if path in stale:
            path.write_text(text, encoding="utf-8")
            print(path.relative_to(ROOT))
    if any(path.suffix == ".csv" for path in stale):
        print("docs/pictures: `make plots` draws them from the new figures")


main()
