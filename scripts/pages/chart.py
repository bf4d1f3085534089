"""docs/results.svg: divergence against bits on each model, and speed on an H200; docs/bits.svg: bits by context.
They follow the reader's light or dark theme, and need no font or script from elsewhere."""
import math
from html import escape

SERIES = (  # class, name, recipes from many bits to few
    ("ours", "kvant, calibrated", ("kvant-4bit", "kvant-3bit", "kvant-2bit", "kvant-1.5bit")),
    ("uniform", "kvant, not calibrated", ("uniform-4bit", "uniform-3bit", "uniform-2bit")),
    ("llama", "llama.cpp's own code", ("llama.cpp:q8_0", "llama.cpp:q4_0")),
    ("fp8", "FP8, as engines store it", ("fp8-s1", "fp8-amax")),
    ("kivi", "KIVI", ("kivi-4bit", "kivi-2bit")),
    ("turbo", "TurboQuant", ("turbo4", "turbo3", "turbo2")),
)
LIGHT = {
    "ours": "#0b62d6", "uniform": "#5a9bea", "llama": "#d4570c", "fp8": "#b3261e", "kivi": "#8250df",
    "turbo": "#1a7f37", "plain": "#6e7781",
}
DARK = {
    "ours": "#6cb0ff", "uniform": "#3d7fcc", "llama": "#ff9a5c", "fp8": "#ff7b72", "kivi": "#c297ff",
    "turbo": "#4fd18b", "plain": "#8b949e",
}
FONT = 17
BITS = (1, 10)
KLD = (1e-4, 10)
WIDTH = 760
PANEL = (300, 210)  # of the plot area
SHAPES = {
    "ours": "circle", "uniform": "ring", "llama": "square", "fp8": "cross", "kivi": "diamond", "turbo": "triangle"
}


def style():
    def rules(colours):
        return " ".join(f".{kind} {{ stroke: {colour}; fill: {colour} }}" for kind, colour in colours.items())

    own = ", ".join(f"text.{kind}" for kind in LIGHT)
    return f"""
  text {{ font: {FONT}px system-ui, sans-serif; fill: #24292f; stroke: none }} .small {{ font-size: {FONT - 3}px }} .title {{ font-weight: 600 }}
  .grid {{ stroke: #d0d7de; stroke-width: 1 }} .faint {{ fill: #57606a }} {rules(LIGHT)}
  {own} {{ stroke: none; fill: #24292f }} .line {{ fill: none; stroke-width: 2.5 }} .hollow {{ fill: #ffffff; stroke-width: 2.5 }}
  @media (prefers-color-scheme: dark) {{
    text {{ fill: #e6edf3 }} .grid {{ stroke: #30363d }} .faint {{ fill: #9198a1 }} {rules(DARK)}
    {own} {{ stroke: none; fill: #e6edf3 }} .line {{ fill: none }} .hollow {{ fill: #0d1117 }}
  }}
"""


def tag(name, body=None, **attributes):
    text = "".join(f' {key.replace("_", "-")}="{value}"' for key, value in attributes.items())
    return f"<{name}{text}/>" if body is None else f"<{name}{text}>{body}</{name}>"


def label(x, y, text, kind="", **more):
    return tag("text", escape(text), x=f"{x:.1f}", y=f"{y:.1f}", **({"class": kind} if kind else {}), **more)


def marker(x, y, kind):
    """Series differ by shape, too, for those who see no colours."""
    shape, r = SHAPES.get(kind, "circle"), 6
    if shape == "ring":
        return tag("circle", cx=f"{x:.1f}", cy=f"{y:.1f}", r=r - 1, **{"class": f"{kind} hollow"})
    if shape == "circle":
        return tag("circle", cx=f"{x:.1f}", cy=f"{y:.1f}", r=r, **{"class": kind})
    points = {
        "square": ((-r, -r), (r, -r), (r, r), (-r, r)),
        "diamond": ((0, -r - 2), (r + 2, 0), (0, r + 2), (-r - 2, 0)),
        "triangle": ((0, -r - 1), (r + 1, r), (-r - 1, r)),
        "cross": ((-r, -r + 2), (-r + 2, -r), (0, -2), (r - 2, -r), (r, -r + 2), (2, 0), (r, r - 2), (r - 2, r), (0, 2),
                  (-r + 2, r), (-r, r - 2), (-2, 0)),
    }[shape]
    return tag("polygon", points=" ".join(f"{x + dx:.1f},{y + dy:.1f}" for dx, dy in points), **{"class": kind})


def legend(names, y):
    """Rows of three; where the next thing may begin."""
    parts = []
    for i, (kind, name) in enumerate(names):
        x, row = 24 + (i % 3) * (WIDTH - 24) / 3, y + i // 3 * 28
        parts += [marker(x, row, kind), label(x + 16, row + 6, name)]
    return parts, y + (len(names) + 2) // 3 * 28


class Plot:
    """A plot area at (x, y), with a title above."""
    def __init__(self, x, y, title, width=PANEL[0], height=PANEL[1]):
        self.x, self.y, self.width, self.height, self.title = x, y, width, height, title

    def log_y(self, value, span):
        low, high = (math.log10(v) for v in span)
        return self.y + self.height * (high - math.log10(min(max(value, span[0]), span[1]))) / (high - low)

    def linear(self, value, span, length):
        return length * (min(max(value, span[0]), span[1]) - span[0]) / (span[1] - span[0])

    def horizontal(self, y, text):
        return [
            tag("line", x1=self.x, x2=self.x + self.width, y1=f"{y:.1f}", y2=f"{y:.1f}", **{"class": "grid"}),
            label(self.x - 7, y + 5, text, "small", text_anchor="end")
        ]

    def below(self, x, text):
        return label(x, self.y + self.height + 20, text, "small", text_anchor="middle")

    def heading(self):
        return label(self.x - 46, self.y - 12, self.title, "title")


def quality_plot(plot, rows):
    """Divergence against bits of the main recipes of one model."""
    parts = [plot.heading()]
    for power in range(-4, 2):
        parts += plot.horizontal(plot.log_y(10.0**power, KLD), f"{10.0**power:g}" if power > -4 else "0.0001")
    x_of = lambda bits: plot.x + plot.linear(bits, BITS, plot.width)
    parts += [plot.below(x_of(bits), str(bits)) for bits in range(BITS[0] + 1, BITS[1] + 1, 2)]
    for kind, _, recipes in SERIES:
        points = [(x_of(rows[r]["bits_all"]), plot.log_y(rows[r]["kld_mean"], KLD)) for r in recipes if r in rows]
        if len(points) > 1 and kind != "fp8":  # two ways to scale, not a scale of bits
            parts.append(
                tag("polyline", points=" ".join(f"{x:.1f},{y:.1f}" for x, y in points), **{"class": f"line {kind}"}))
        parts += [marker(x, y, kind) for x, y in points]
    return parts


def bars(plot, rows, unit):
    """rows: (name, value, class). The names stand above their bars, the values at their ends."""
    parts = []
    if not rows:
        return parts
    longest = max(value for _, value, _ in rows)
    step = plot.height / len(rows)
    for i, (name, value, kind) in enumerate(rows):
        y, length = plot.y + i * step, max(1.0, (plot.width - 50) * value / longest)
        parts += [
            label(plot.x - 46, y + FONT - 3, name, "small"),
            tag("rect",
                x=plot.x - 46,
                y=f"{y + FONT + 2:.1f}",
                width=f"{length:.1f}",
                height=f"{step - FONT - 10:.1f}",
                rx=2,
                **{"class": kind}),
            label(plot.x - 46 + length + 6, y + FONT + 2 + (step - FONT - 10) / 2 + 5, f"{value:,.0f} {unit}", "small")
        ]
    return parts


def document(height, text, body):
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" width="{WIDTH}" height="{height:.0f}" '
        f'role="img" aria-label="{escape(text)}">')
    return "\n".join([head, tag("style", style()), *body, "</svg>"]) + "\n"


def svg(models, caption, speed):
    """models: (title, recipe -> row) of at most three models. caption: where and at which context. speed: a title, rows, a unit."""
    parts = [
        label(12, 26, "Mean KL divergence from the unquantized cache, by bits per value", "title"),
        label(12, 50, caption, "small faint")
    ]
    names = [(kind, name) for kind, name, recipes in SERIES if any(r in rows for _, rows in models for r in recipes)]
    added, top = legend(names, 78)
    parts += added
    places = [(76 + column * 376, top + 34 + row * (PANEL[1] + 86)) for row in range(2) for column in range(2)]
    for (title, rows), (x, y) in zip(models, places):
        parts += quality_plot(Plot(x, y, title), rows)
        parts.append(label(x + PANEL[0] / 2, y + PANEL[1] + 42, "bits per value", "small faint", text_anchor="middle"))
    title, rows, unit, note = speed
    x, y = places[3]
    parts += bars(Plot(x, y + 40, "", height=PANEL[1] + 6), rows, unit)
    parts += [label(x - 46, y - 12, title, "title"), label(x - 46, y + 9, note[0], "small faint"),
              label(x - 46, y + 27, note[1], "small faint")]
    return document(places[3][1] + PANEL[1] + 58,
                    "Divergence against bits on three models, and the time of attention on an H200", parts)


def bits_svg(series, caption, contexts):
    """Effective bits by context. series: (class, name, bits at each context)."""
    parts = [
        label(12, 26, "Bits per value that a cache takes, by its length", "title"),
        label(12, 50, caption, "small faint")
    ]
    added, top = legend([(kind, name) for kind, name, _ in series], 78)
    parts += added
    plot = Plot(60, top + 20, "", width=WIDTH - 90, height=300)
    span, most = [math.log2(contexts[0]), math.log2(contexts[-1])], 17
    y_of = lambda bits: plot.y + plot.height - plot.linear(bits, (0, most), plot.height)
    x_of = lambda context: plot.x + plot.linear(math.log2(context), span, plot.width)
    for bits in range(0, 17, 4):
        parts += plot.horizontal(y_of(bits), str(bits))
    parts += [plot.below(x_of(c), f"{c // 1024}k" if c >= 1024 else str(c)) for c in contexts]
    parts.append(
        label(plot.x + plot.width / 2,
              plot.y + plot.height + 42,
              "tokens in the cache",
              "small faint",
              text_anchor="middle"))
    for kind, _, values in series:
        points = [(x_of(c), y_of(v)) for c, v in zip(contexts, values)]
        parts.append(
            tag("polyline", points=" ".join(f"{x:.1f},{y:.1f}" for x, y in points), **{"class": f"line {kind}"}))
        parts += [marker(x, y, kind) for x, y in points]
    return document(plot.y + plot.height + 58, "Bits per value by length of the cache", parts)
