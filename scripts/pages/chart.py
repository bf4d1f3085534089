"""docs/results.svg: divergence against bits, and the time of attention on the CPU. It follows the reader's light or dark
theme, and needs no font or script from elsewhere."""
import math
from html import escape

SERIES = (  # class, name, recipes from many bits to few, whether a line joins them
    ("ours", "kvant", ("kvant-4bit", "kvant-3bit", "kvant-2bit"), True),
    ("llama", "llama.cpp", ("llama.cpp:q8_0", "llama.cpp:q8_0/q4_0", "llama.cpp:q5_0", "llama.cpp:q4_0"), True),
    ("turbo", "TurboQuant", ("turbo4", "turbo3", "turbo2"), True),
    ("kivi", "KIVI", ("kivi-4bit", "kivi-3bit", "kivi-2bit"), True),
    ("vecinfer", "VecInfer", ("vecinfer-4bit", "vecinfer-3bit", "vecinfer-2bit"), True),
)
STYLE = """
  text { font: 13px system-ui, sans-serif; fill: #24292f } .small { font-size: 11px } .title { font-weight: 600 }
  .grid { stroke: #d0d7de; stroke-width: 1 } .line { fill: none; stroke-width: 2 } .faint { fill: #57606a }
  .ours { stroke: #0b62d6; fill: #0b62d6 } .llama { stroke: #d4570c; fill: #d4570c } .turbo { stroke: #1a7f37; fill: #1a7f37 }
  .kivi { stroke: #8250df; fill: #8250df } .vecinfer { stroke: #9a6700; fill: #9a6700 } .plain { stroke: #6e7781; fill: #6e7781 }
  text.ours, text.llama, text.turbo, text.kivi, text.vecinfer { stroke: none } .line { fill: none }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3 } .grid { stroke: #30363d } .faint { fill: #9198a1 }
    .ours { stroke: #6cb0ff; fill: #6cb0ff } .llama { stroke: #ff9a5c; fill: #ff9a5c } .turbo { stroke: #4fd18b; fill: #4fd18b }
    .kivi { stroke: #c297ff; fill: #c297ff } .vecinfer { stroke: #e3b341; fill: #e3b341 } .plain { stroke: #8b949e; fill: #8b949e }
    text.ours, text.llama, text.turbo, text.kivi, text.vecinfer { stroke: none } .line { fill: none }
  }
"""
WIDTH, HEIGHT = 960, 400
LEFT = (70, 48, 430, 300)  # x, y, width, height of the plot area
RIGHT = (690, 48, 190, 300)
BITS = (2, 9)
KLD = (1e-4, 1)


def tag(name, body=None, **attributes):
    text = "".join(f' {key.replace("_", "-")}="{value}"' for key, value in attributes.items())
    return f"<{name}{text}/>" if body is None else f"<{name}{text}>{body}</{name}>"


def label(x, y, text, kind="", **more):
    return tag("text", escape(text), x=f"{x:.1f}", y=f"{y:.1f}", **({"class": kind} if kind else {}), **more)


def x_of(bits):
    return LEFT[0] + LEFT[2] * (bits - BITS[0]) / (BITS[1] - BITS[0])


def y_of(kld):
    low, high = (math.log10(v) for v in KLD)
    return LEFT[1] + LEFT[3] * (high - math.log10(kld)) / (high - low)


def axes():
    parts = [label(LEFT[0] - 50, 24, "Mean KL divergence from the unquantized cache", "title")]
    for power in range(-4, 1):
        y = y_of(10.0**power)
        parts.append(tag("line", x1=LEFT[0], x2=LEFT[0] + LEFT[2], y1=f"{y:.1f}", y2=f"{y:.1f}", **{"class": "grid"}))
        parts.append(label(LEFT[0] - 8, y + 4, f"{10.0**power:g}" if power > -4 else "0.0001", "small", text_anchor="end"))
    for bits in range(BITS[0], BITS[1] + 1):
        parts.append(label(x_of(bits), LEFT[1] + LEFT[3] + 20, str(bits), "small", text_anchor="middle"))
    parts.append(label(LEFT[0] + LEFT[2] / 2, LEFT[1] + LEFT[3] + 40, "bits per value, constants of the model not included",
                       "small faint", text_anchor="middle"))
    return parts


def series(run):
    parts = []
    rows = {row["recipe"]: row for row in run["results"]}
    for kind, name, recipes, joined in SERIES:
        points = [(x_of(rows[r]["bits_all"]), y_of(min(max(rows[r]["kld_mean"], KLD[0]), KLD[1]))) for r in recipes
                  if r in rows]
        if not points:
            continue
        if joined:
            path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
            parts.append(tag("polyline", points=path, **{"class": f"line {kind}"}))
        for x, y in points:
            parts.append(tag("circle", cx=f"{x:.1f}", cy=f"{y:.1f}", r=4.5, **{"class": kind}))
        x, y = points[-1]  # that of the fewest bits, where series lie apart
        parts.append(label(x + 8, y - 7, name, kind))
    return parts


def bars(rows, title, subtitle):
    """rows: (name, microseconds, kind). Bars of one scale, the time beside each."""
    parts = [label(RIGHT[0] - 150, 24, title, "title"), label(RIGHT[0] - 150, 40, subtitle, "small faint")]
    longest = max(us for _, us, _ in rows)
    step = min(34, RIGHT[3] / len(rows))
    for i, (name, us, kind) in enumerate(rows):
        y = RIGHT[1] + 14 + i * step
        parts.append(label(RIGHT[0] - 8, y + 14, name, "small", text_anchor="end"))
        parts.append(tag("rect", x=RIGHT[0], y=f"{y:.1f}", width=f"{max(1, RIGHT[2] * us / longest):.1f}",
                         height=f"{step - 12:.1f}", rx=2, **{"class": kind}))
        parts.append(label(RIGHT[0] + RIGHT[2] * us / longest + 6, y + 14, f"{us / 1000:.1f} ms", "small"))
    return parts


def svg(run, rows, title, subtitle):
    body = axes() + (series(run) if run else []) + (bars(rows, title, subtitle) if rows else [])
    head = (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
            'role="img" aria-label="Divergence against bits, and the time of attention on the CPU">')
    return "\n".join([head, tag("style", STYLE), *body, "</svg>"]) + "\n"
