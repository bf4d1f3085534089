#!/usr/bin/env python3
"""Draws docs/pictures from docs/results, once for a light and once for a dark page. Needs matplotlib: `make plots`.

    scripts/plots.py docs/results            draw all pictures
    scripts/plots.py docs/results --check    say what is not current, change nothing
"""
import io
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import matplotlib  # noqa: E402

matplotlib.use("svg")
from pages import pictures  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parent.parent
FOLDER = ROOT / "docs/pictures"


def drawn(picture, theme):
    """Returns the SVG as text. Every run returns equal text."""
    settings = {
        "svg.hashsalt": "kvant", "svg.fonttype": "none", "font.family": "DejaVu Sans", "font.size": 12, "axes.grid": True,
        "axes.spines.top": False, "axes.spines.right": False, "axes.titlesize": 12.5, "axes.titleweight": "bold",
        "axes.titlelocation": "left", "lines.linewidth": 2, "lines.markersize": 7, "legend.frameon": False,
        "figure.constrained_layout.use": True, "figure.facecolor": "none", "axes.facecolor": "none",
        "savefig.facecolor": "none", "grid.linewidth": 0.8, "axes.axisbelow": True,
        **{key: theme["text"] for key in ("text.color", "axes.labelcolor", "xtick.color", "ytick.color", "axes.edgecolor")},
        "grid.color": theme["grid"]
    }
    with matplotlib.rc_context(settings):
        figure = picture(theme)
        out = io.StringIO()
        figure.savefig(out, format="svg", metadata={"Date": None})
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"


def main():
    if len(sys.argv) not in (2, 3) or sys.argv[2:] not in ([], ["--check"]):
        sys.exit(__doc__)
    files = {
        FOLDER / f"{name}-{kind}.svg": drawn(picture, theme)
        for name, picture in pictures.all_of(pathlib.Path(sys.argv[1])).items() for kind, theme in pictures.THEMES.items()
    }
    stale = [path for path, text in files.items() if not path.exists() or path.read_text(encoding="utf-8") != text]
    if sys.argv[2:]:
        if stale:
            sys.exit(f"not what docs/results say: {', '.join(path.name for path in stale)}: run `make plots`")
        return
    FOLDER.mkdir(exist_ok=True)
    for path in stale:
        path.write_text(files[path], encoding="utf-8")
        print(path.relative_to(ROOT))


main()
