"""Draws the pictures of scripts/plots.py. Each picture takes a theme and returns a figure of matplotlib.

Widths suit a phone: a picture is at most 680 pixels wide, and its letters have 16 pixels. Series differ by shape and
dash as well as by colour. Legends stand above the plots, where no line crosses them.
"""
import matplotlib.pyplot as plt
from matplotlib.patches import Rectangle
from matplotlib.ticker import FuncFormatter, NullFormatter, NullLocator

from pages.bits import Bits
from pages.gpu import Gpu
from pages.models import MODELS
from pages.quality import FEWEST, Quality
from pages.results import day_of

THEMES = {
    "light": {
        "text": "#24292f", "faint": "#57606a", "grid": "#d8dee4", "ours": "#0b62d6", "uniform": "#4a94ee", "llama": "#d4570c",
        "fp8": "#b3261e", "kivi": "#8250df", "turbo": "#1a7f37", "plain": "#6e7781", "page": "#cfe2fb"
    },
    "dark": {
        "text": "#e6edf3", "faint": "#9aa4af", "grid": "#363c45", "ours": "#6cb0ff", "uniform": "#3d7fcc", "llama": "#ff9a5c",
        "fp8": "#ff7b72", "kivi": "#c297ff", "turbo": "#4fd18b", "plain": "#9aa4af", "page": "#1f3d63"
    },
}
MARKS = {"ours": "o-", "uniform": "o--", "llama": "s-", "fp8": "X-", "kivi": "D-", "turbo": "^-", "plain": "v-"}
# Each entry has the name of a colour, a label, and recipes in the order of falling bits.
QUALITY = (
    ("ours", "kvant, calibrated", ("kvant-4bit", "kvant-3bit", "kvant-2bit", "kvant-1.5bit")),
    ("uniform", "kvant, not calibrated", ("uniform-4bit", "uniform-3bit", "uniform-2bit")),
    ("llama", "llama.cpp's own code", ("llama.cpp:q8_0", "llama.cpp:q4_0")),
    ("fp8", "FP8, as engines store it", ("fp8-s1", "fp8-amax")),
    ("kivi", "KIVI", ("kivi-4bit", "kivi-2bit")),
    ("turbo", "TurboQuant", ("turbo4", "turbo3", "turbo2")),
)
# Maps caches in plots of speed to their class and name.
CACHES = {
    "llama.cpp:f16": ("llama", "llama.cpp, f16"), "llama.cpp:q4_0": ("kivi", "llama.cpp, q4_0"), "bf16": ("plain", "kvant, bf16"),
    "uniform-4bit": ("ours", "kvant, uniform-4bit"), "uniform-2bit": ("uniform", "kvant, uniform-2bit"),
}


def thousands(value, _=None):
    return f"{value / 1024:.0f}k" if value >= 1024 else f"{value:.0f}"


def figure(columns, rows, height, title, note, theme, width=7.0):
    fig, axes = plt.subplots(rows, columns, figsize=(width, height), squeeze=False)
    fig.text(0.01, 1 - 0.08 / height, title, va="top", weight="bold", fontsize=13)
    fig.text(0.01, 1 - 0.34 / height, note, va="top", fontsize=10.5, color=theme["faint"])
    fig.get_layout_engine().set(rect=(0, 0, 1, 1 - 0.62 / height))
    return fig, [axis for row in axes for axis in row]


def legend(fig, axes, columns=2):
    """Draws a legend between the title and the plots."""
    found = {}
    for axis in axes:
        for handle, name in zip(*axis.get_legend_handles_labels()):
            found.setdefault(name, handle)
    height, rows = fig.get_figheight(), -(-len(found) // columns)
    fig.legend(found.values(), found.keys(), loc="upper left", bbox_to_anchor=(0, 1 - 0.56 / height), ncols=columns, fontsize=11,
               columnspacing=1.4, handlelength=2.2, borderaxespad=0)
    fig.get_layout_engine().set(rect=(0, 0, 1, 1 - (0.68 + 0.25 * rows) / height))


def line(axis, xs, ys, kind, name, theme, mark=None, **more):
    axis.plot(xs, ys, mark or MARKS[kind], color=theme[kind], label=name, **more)


def plain_log(axis, x=False):
    target = axis.xaxis if x else axis.yaxis
    target.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}" if value >= 1e-3 else f"{value:.4f}".rstrip("0")))
    target.set_minor_formatter(NullFormatter())


def depths(axis, values):
    """Makes a logarithmic axis of lengths, with ticks at the measured lengths."""
    axis.set_xscale("log", base=2)
    axis.set_xticks(values)
    axis.xaxis.set_major_formatter(FuncFormatter(thousands))
    axis.xaxis.set_minor_locator(NullLocator())


class Pictures:
    def __init__(self, folder):
        self.quality, self.gpu, self.bits = Quality(folder), Gpu(folder), Bits(folder)

    # --- quality

    def divergence(self, theme, context):
        """Draws divergence against bits on each model, with intervals."""
        shown = [(model, self.quality.rows(model, context=context)) for model in self.quality.models(context)]
        main = {recipe for _, _, recipes in QUALITY for recipe in recipes}
        days = sorted({row["day"] for _, rows in shown for recipe, row in rows.items() if recipe in main})
        span = days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"
        fig, axes = figure(2, 2, 7.6, "Mean KL divergence from the unquantized cache, by bits per value",
                           f"WikiText-2 at context {context:,}; bars: 95 % intervals; {span}", theme)
        for axis, (model, rows) in zip(axes, shown):
            axis.set_title(MODELS[model].title)
            axis.set_yscale("log")
            axis.set_ylim(1e-4, 10)
            axis.set_xlim(1.5, 9.5)
            axis.set_xticks(range(2, 10))
            plain_log(axis)
            for kind, name, recipes in QUALITY:
                found = [rows[recipe] for recipe in recipes if recipe in rows]
                if found:
                    line(axis, [row["bits_all"] for row in found], [row["kld_mean"] for row in found], kind, name, theme,
                         # The two FP8 recipes are two ways to scale, so no line connects them.
                         mark="X" if kind == "fp8" else None)
                for row in found:
                    if row["n"] >= FEWEST:
                        axis.plot([row["bits_all"]] * 2, [row["kld_lo"], row["kld_hi"]], color=theme[kind], linewidth=4, alpha=0.45)
            axis.set_xlabel("bits per value")
        self.bars(axes[3], theme) if context == 2048 else axes[3].set_axis_off()
        legend(fig, axes[:3])
        return fig

    def bars(self, axis, theme):
        """Draws decode attention with 8 sequences of 128k: the fastest rivals and kvant."""
        document = next((d for d in self.gpu.kind("decode") if d["dim"] == 128 and "8, 128k" in d["shapes"]), None)
        ours = [r for name in ("uniform-4bit", "uniform-2bit") for r in (document or {"results": []})["results"]
                if r.get("recipe") == name]
        if not ours:
            return axis.set_axis_off()
        index = document["shapes"].index("8, 128k")
        rows = [(f"{kind}, {rival['name'].split(',')[0]}", rival["us"][index], "plain")
                for rival, kind in zip(self.gpu.rivals(document, ours[0], index), ("BF16", "FP8"))]
        rows += [(f"kvant, {row['recipe']}", row["us"][index], "ours") for row in ours]
        axis.set_title("Attention, microseconds")
        most = max(us for _, us, _ in rows)
        for i, (name, us, kind) in enumerate(rows):
            axis.barh(-i, us, 0.42, color=theme[kind])
            axis.text(most / 60, -i + 0.3, name, fontsize=10.5, va="bottom")
            axis.text(us + most / 60, -i, f"{us:,.0f}", fontsize=10.5, va="center")
        axis.set_xlim(0, 1.17 * most)
        axis.set_ylim(-len(rows) + 0.6, 0.75)
        axis.set_yticks([])
        axis.grid(False)
        axis.spines["bottom"].set_visible(False)
        axis.set_xticks([])
        fp8 = document.get("fp8_measured", "").removeprefix("FP8 on ")
        axis.set_xlabel(f"8 x 128k tokens, H200, {day_of(document['measured_on'])}" + (f"\nFP8: {fp8}" if fp8 else ""), fontsize=10)
        return None

    def bits_by_context(self, theme):
        document = self.bits.document
        fig, (axis, ) = figure(1, 1, 5.2, "Bits per value that a cache takes, by its length",
                               f"{MODELS[document['model']].title}, heads of 128; tail, window and sink included", theme)
        kinds = {"kivi-4bit": "kivi", "q4_0-h": "turbo", "uniform-4bit": "ours", "llama.cpp:q4_0": "llama", "kivi-2bit": "fp8",
                 "uniform-2bit": "uniform"}
        rows = {row["recipe"]: row["bits"] for row in document["results"]}
        for name, kind in kinds.items():
            if name in rows:
                line(axis, document["contexts"], rows[name], kind, name, theme)
        axis.axhline(16, color=theme["plain"], linestyle=":", label="BF16")
        depths(axis, document["contexts"])
        axis.set_ylim(0, 17)
        axis.set_yticks(range(0, 17, 4))
        axis.set_xlabel("tokens in the cache")
        legend(fig, [axis], 3)
        return fig

    # --- speed

    def whole_model(self, theme):
        """Draws the decode speed of an 8B model by depth."""
        document = next(d for d in self.gpu.kind("whole_model") if d["title"] == "An 8B in Q4_K: decoding")
        fig, (axis, ) = figure(1, 1, 5.2, "Decode of an 8B by context, tokens per second",
                               f"One sequence on an H200, random weights in Q4_K; {day_of(document['measured_on'])}", theme)
        lengths = sorted({row["depth"] for row in document["results"] if row["depth"]})
        for cache, (kind, name) in CACHES.items():
            rates = {row["depth"]: row["decode_tps"] for row in document["results"] if row["recipe"] == cache}
            at = [depth for depth in lengths if depth in rates]
            line(axis, at, [rates[depth] for depth in at], kind, name, theme)
        depths(axis, lengths)
        axis.set_ylim(0)
        axis.set_xlabel("context")
        legend(fig, [axis])
        return fig

    def attention(self, theme):
        """Draws the time of decode attention by context, with the limit of memory bandwidth."""
        document = next(d for d in self.gpu.kind("decode") if d["dim"] == 128)
        sequences = ("1", "8")
        fig, axes = figure(1, 2, 7.6, "Decode attention by context, microseconds a layer",
                           f"H200, heads of 128; dotted: what reading the bytes takes; {day_of(document['measured_on'])}", theme)
        rows = {row.get("recipe") or row["name"]: row for row in document["results"]}
        shown = (("torch SDPA cudnn, BF16", "plain", "PyTorch (cuDNN), BF16"), ("FlashInfer XQA, FP8", "fp8", "FlashInfer, FP8"),
                 ("uniform-4bit", "ours", "uniform-4bit"), ("kivi-2bit", "kivi", "kivi-2bit"))
        for axis, count in zip(axes, sequences):
            at = [(i, int(shape.split(", ")[1].rstrip("k")) * 1024) for i, shape in enumerate(document["shapes"])
                  if shape.split(", ")[0] == count]
            for key, kind, name in shown:
                us = rows[key]["us"]
                line(axis, [tokens for _, tokens in at], [us[i] for i, _ in at], kind, name, theme)
                limit = rows[key].get("limit_percent")
                if limit:
                    axis.plot([tokens for _, tokens in at], [us[i] * limit[i] / 100 for i, _ in at], ":", color=theme[kind], linewidth=1.5)
            axis.set_title(f"{count} sequence" + ("s" if count != "1" else ""))
            axis.set_xticks([tokens for _, tokens in at])
            axis.xaxis.set_major_formatter(FuncFormatter(thousands))
            axis.set_ylim(0)
            axis.set_xlim(0)
            axis.set_xlabel("context of each")
        legend(fig, axes)
        return fig

    def vllm(self, theme):
        """Draws throughput and capacity in vLLM for BF16, FP8 and kvant."""
        document = next(d for d in self.gpu.kind("table") if d["title"] == "In vLLM")
        kinds = {"`auto` (BF16)": ("plain", "BF16"), "`fp8`": ("fp8", "FP8"), "`uniform-4bit,sink=1`": ("ours", "uniform-4bit"),
                 "`uniform-2bit,sink=1`": ("uniform", "uniform-2bit")}
        rows = {row[0]: row for row in document["results"]}
        columns = [column.partition(",")[0] for column in document["columns"]]
        fig, axes = figure(1, 2, 7.2, "In vLLM 0.26: throughput and capacity compared with BF16",
                           f"8B with dummy weights on an H200, one run each; {day_of(document['measured_on'])}", theme)
        panels = (("Output tokens per second while the batch decodes", (1, 2, 3)), ("Tokens that fit in the cache", (7, )))
        for axis, (title, places) in zip(axes, panels):
            axis.set_title(title)
            for i, (key, (kind, name)) in enumerate(kinds.items()):
                ratios = [plain(rows[key][place]) / plain(rows["`auto` (BF16)"][place]) for place in places]
                at = [place + (i - 1.5) * 0.19 for place in range(len(places))]
                axis.bar(at, ratios, 0.17, color=theme[kind], label=name)
                for x, ratio in zip(at, ratios):
                    axis.text(x, ratio + 0.04, f"{ratio:.1f}x", ha="center", fontsize=10)
            axis.set_xticks(range(len(places)), [columns[place] for place in places] if len(places) > 1 else [""])
            axis.grid(axis="x", visible=False)
            axis.set_xlim(-0.6, 2.6)
            axis.margins(y=0.12)
        legend(fig, axes[:1], 4)
        return fig

    def first_token(self, theme):
        """Draws the time to the first token, for which exact prefill is no better than BF16."""
        document = next(d for d in self.gpu.kind("table") if d["title"] == "Time to first token")
        fig, axes = figure(2, 1, 4.6, "Time to the first token, seconds",
                           f"Shape of an 8B, random weights, one prompt on an H200; {day_of(document['measured_on'])}", theme)
        kinds = {"BF16": ("plain", "BF16"), "`uniform-4bit,sink=1`": ("uniform", "uniform-4bit, exact"),
                 "`uniform-4bit,sink=1,prompt=flashq`": ("ours", "uniform-4bit, prompts in INT8"),
                 "`kvant-fast4,prompt=flashq`": ("turbo", "kvant-fast4, prompts in INT8")}
        rows = {row[0]: row for row in document["results"]}
        for axis, place in zip(axes, (1, 2)):
            axis.set_title(f"Prompt of {document['columns'][place]} tokens")
            for i, (key, (kind, name)) in enumerate(kinds.items()):
                axis.bar([i], [0 if rows[key][place] == "-" else plain(rows[key][place])], 0.7, color=theme[kind], label=name)
                shown = "not run" if rows[key][place] == "-" else rows[key][place].partition(" ")[0]
                axis.text(i, 0 if rows[key][place] == "-" else plain(rows[key][place]), shown, ha="center", va="bottom", fontsize=10.5)
            axis.set_xticks([])
            axis.grid(axis="x", visible=False)
            axis.margins(y=0.14)
        legend(fig, axes)
        return fig

    # --- how it works

    @staticmethod
    def life_of_a_page(theme):
        """Draws what a cache of 652 tokens keeps in which form."""
        fig, axes = figure(1, 2, 4.6, "A cache of one KV head, first to newest token",
                           "Pages of 128 tokens; a page is quantized when it is full", theme, width=5.2)
        for axis, full in zip(axes, (2, 4)):
            newest = 60
            tokens = full * 128 + newest
            axis.set_title(f"{tokens} tokens")
            for page in range(full):
                axis.add_patch(Rectangle((page * 128 + 2, 0), 124, 1, facecolor=theme["page"], edgecolor=theme["ours"]))
                axis.text(page * 128 + 66, 0.5, "2 to 4\nbits", ha="center", va="center", fontsize=11)
            axis.add_patch(Rectangle((2, 0), 15, 1, facecolor=theme["llama"], edgecolor="none"))
            axis.add_patch(Rectangle((full * 128 + 2, 0), newest, 1, facecolor=theme["turbo"], edgecolor="none"))
            axis.add_patch(Rectangle((full * 128 + 2, 0), 124, 1, facecolor="none", edgecolor=theme["plain"], linestyle="--"))
            axis.annotate("sink: 4 tokens\nin 16 bits", (9, 0), (4, -0.75), fontsize=10.5, va="center",
                          arrowprops={"arrowstyle": "-", "color": theme["plain"]})
            axis.annotate(f"tail: the newest {newest}\nin BF16", (full * 128 + 30, 0), (full * 128 - 60, -0.75), fontsize=10.5,
                          va="center", arrowprops={"arrowstyle": "-", "color": theme["plain"]})
            axis.set_xlim(0, 5 * 128 + 40)
            axis.set_ylim(-1.15, 1.1)
            axis.set_axis_off()
        return fig

    def all(self):
        return {
            "results": lambda theme: self.divergence(theme, 2048),
            "quality-8192": lambda theme: self.divergence(theme, 8192),
            "bits": self.bits_by_context,
            "whole-model": self.whole_model,
            "attention": self.attention,
            "vllm": self.vllm,
            "first-token": self.first_token,
            "life-of-a-page": self.life_of_a_page,
        }


def plain(cell):
    """Returns the number in a cell such as `1,989 (2.63x)`."""
    return float(cell.partition(" ")[0].replace(",", ""))


def all_of(folder):
    return Pictures(folder).all()
