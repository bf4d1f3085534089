"""Defines hooks of MkDocs. The hooks add the lab's pages, and pages and sources from outside docs/, to the site. They
also limit the words of a page."""
import logging
import pathlib
import posixpath
import re

from mkdocs.structure.files import File

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
# GitHub expects the pages OUTSIDE in the root folder.
OUTSIDE = ("CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")
# The pages RESULTS and the folder results/ have the widest tables.
RESULTS = ("quality.md", "cpu.md", "gpu.md")
LINK = re.compile(r"\]\(([^)\s#]+)(#[^)\s]*)?\)")
CODE = re.compile(r"(^```.*?^```|`[^`\n]*`)", re.DOTALL | re.MULTILINE)
log = logging.getLogger("mkdocs.hooks.kvant")


def on_config(config):
    pages = sorted((ROOT / "docs/lab").glob("*.md"), key=lambda page: (page.name != "README.md", page.name))
    config.nav = [{"Lab": [f"lab/{page.name}" for page in pages]} if "Lab" in entry else entry for entry in config.nav]
    return config


def on_files(files, config):
    for name in OUTSIDE:
        files.append(File.generated(config, name, abs_src_path=str(ROOT / name)))
    for path in sorted(linked_sources(files)):
        files.append(File.generated(config, site_address(path), abs_src_path=str(ROOT / path)))
    return files


def linked_sources(files):
    """Returns the files of the repository to which pages link and that are not pages."""
    found = set()
    for file in files.documentation_pages():
        for target, _ in LINK.findall(CODE.sub("", file.content_string)):
            path = in_repository(target, file.src_uri)
            if path and not path.startswith("docs/") and path not in OUTSIDE and (ROOT / path).is_file():
                found.add(path)
    return found


def in_repository(target, source):
    """Returns where a page's link leads, relative to the repository's root, or None if it leads elsewhere."""
    if ":" in target:
        return None
    page = source if source in OUTSIDE else f"docs/{source}"
    return posixpath.normpath(posixpath.join(posixpath.dirname(page), target))


def site_address(path):
    if path in OUTSIDE:
        return path
    # Browsers show .txt files instead of downloading them.
    return path.removeprefix("docs/") if path.startswith("docs/") else f"source/{path}.txt"


def on_page_markdown(markdown, page, config, files):
    source = page.file.src_uri
    if source.startswith("results/") or source in RESULTS:
        # The tables of these pages need the width of the list of headings.
        page.meta["hide"] = ["toc"]

    def rewritten(match):
        path = in_repository(match.group(1), source)
        if path is None:
            return match.group(0)
        if not (ROOT / path).exists():
            log.warning("%s: %s does not exist", source, match.group(1))
        return f"]({posixpath.relpath(site_address(path), posixpath.dirname(source) or '.')}{match.group(2) or ''})"

    parts = CODE.split(markdown)
    parts[::2] = [LINK.sub(rewritten, part) for part in parts[::2]]
    return "".join(parts)
