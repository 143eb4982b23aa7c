"""Bars, a row an op and shape: how many times faster (a logarithmic axis around 1x), and the share of the ceiling."""
import html
import math

from . import svg
from .against import SLOWER, pair_of
from .results import DTYPES, FAMILIES
from .table import NAMES, digits

WIDTH, ROW, TOP, BOTTOM = 1040, 20, 46, 50
BAR = ("fp16", "bf16", "tf32", "fp32")  # the first of these that a row has is its bar


def one_a_shape(rows):
    """Cold rows, warm ones only with a dtype that the shape lacks cold: bars of both would say everything twice."""
    cold = {(r.op, r.shape, d) for r in rows if r.cache != "warm" for d in DTYPES if r.timed(d)}
    return [r for r in rows if r.cache != "warm"
            or any(r.timed(d) and (r.op, r.shape, d) not in cold for d in DTYPES)]


def by_family(rows):
    order = [family for family, _ in reversed(FAMILIES)]
    return sorted(rows, key=lambda r: order.index(next(iter(r.by_dtype.values())).family))


class Chart:
    """Rows under each other with the axis below; `at` maps a value to x."""

    def __init__(self, rows, ticks, at, left):
        self.rows, self.ticks, self.at, self.left = rows, ticks, at, left
        self.height = TOP + ROW * len(rows) + BOTTOM
        self.body = []

    def y(self, i):
        return TOP + ROW * i + ROW / 2

    def frame(self, title, tick_label, marks=()):
        bottom = self.height - BOTTOM
        for tick in self.ticks:
            x = self.at(tick)
            self.body += [svg.line(x, TOP - 4, x, bottom, "mark" if tick in marks else "grid"),
                          svg.text(x, bottom + 16, tick_label(tick), "tick", "middle")]
            self.body.append(svg.text(x, TOP - 9, tick_label(tick), "tick", "middle"))
        self.body.append(svg.text((self.left + WIDTH - 90) / 2, self.height - 12, title, "title", "middle"))
        for i, row in enumerate(self.rows):
            x, y = self.left - 10, self.y(i) + 4
            self.body.append(f'<text x="{x:.1f}" y="{y:.1f}" font-size="12" text-anchor="end"><tspan>'
                             f'{html.escape(row.op)}</tspan><tspan class="muted" dx="6" font-size="11">'
                             f'{html.escape(detail(row))}</tspan></text>')


def detail(row):
    return row.shape + (" warm" if row.cache == "warm" else "")


def margin(rows):
    return min(430, 26 + max(svg.text_width(r.op) + svg.text_width(detail(r), 11) for r in rows))


def log_chart(rows, values, title, legend, sign=lambda row: ""):
    """values: a row's list of (ratio, dtype or pair's class, tooltip): the first a bar from 1x, the others rings.
    sign: what stands before a row's number."""
    found = [v for row in rows for v, _, _ in values(row)]
    low = min(0.8, min(found) / 1.12)
    high = max(2.2, max(found) * 1.12)
    left = margin(rows)
    right = WIDTH - 90

    def at(value):
        return left + (math.log2(value) - math.log2(low)) / (math.log2(high) - math.log2(low)) * (right - left)

    ticks = [2.0 ** e for e in range(math.ceil(math.log2(low)), math.floor(math.log2(high)) + 1)]
    between = (0.6, 0.7, 0.8, 0.9, 1.2, 1.5, 1.75) if high / low < 6 else (0.8, 1.25, 1.5) if high / low < 12 else ()
    ticks = sorted(set(ticks) | {v for v in between if low <= v <= high})
    chart = Chart(rows, ticks, at, left)
    chart.frame(title, lambda v: f"{v:g}×", marks=(1.0, 2.0))
    for i, row in enumerate(rows):
        shown = values(row)
        if not shown:
            continue
        ratio, style, tip = shown[0]
        a, b = sorted((at(1), at(ratio)))
        chart.body.append(svg.rect(a, chart.y(i) - 6, max(b - a, 1), 12, f"bar fill-{style}", tip))
        for v, kind, tip in shown[1:]:
            chart.body.append(svg.marker("elementwise", at(v), chart.y(i), f"ring line-{kind}", tip))
        chart.body.append(svg.text(WIDTH - 8, chart.y(i) + 4, f"{sign(row)}{ratio:.2f}×", "value", "end"))
    chart.body += legend_of(left, legend)
    return svg.figure(WIDTH, chart.height, chart.body, title)


def legend_of(x, entries):
    body = []
    for style, name in entries:
        body += [svg.marker("elementwise", x + 6, 14, style), svg.text(x + 17, 18, name)]
        x += 38 + svg.text_width(name)
    return body


def dtype_entries(used, bars):
    main = next(d for d in BAR if d in bars)
    return [(f"dot fill-{d}", f"{NAMES[d]} (bar, number)") if d == main else
            (f"ring line-{d}", NAMES[d] + (f" (bar where {NAMES[main]} is missing)" if d in bars else ""))
            for d in used]


def speed_up(rows):
    """FP16's speed-up over FP32, and as rings over TF32; empty where a run lacks one of the two dtypes."""
    rows = by_family([r for r in one_a_shape(rows) if r.ratio("fp32", "fp16")])
    if not rows:
        return ""

    def values(row):
        found = []
        for slow in ("fp32", "tf32"):
            if ratio := row.ratio(slow, "fp16"):
                tip = (f"{row.op} {detail(row)}\n{NAMES[slow]} {digits(row.by_dtype[slow].us)} µs, FP16 "
                       f"{digits(row.by_dtype['fp16'].us)} µs: {ratio:.2f}× as fast")
                found.append((ratio, "fp16" if slow == "fp32" else "tf32", tip))
        return found

    legend = [("dot fill-fp16", "over FP32 (bar, number)")]
    if any(r.ratio("tf32", "fp16") for r in rows):
        legend.append(("ring line-tf32", "over TF32"))
    return log_chart(rows, values, "FP16's speed-up: time in FP32 / time in FP16 (×, logarithmic)", legend)


def against_peer(rows, peer):
    """PyTorch's time over demi's: FP16 (or the row's own dtype) as bars, the other dtypes as rings."""
    rows = by_family([r for r in one_a_shape(rows) if any(pair_of(r, d, peer) for d in DTYPES)])
    if not rows:
        return ""

    def values(row):
        found = []
        for dtype in BAR:
            if pair := pair_of(row, dtype, peer):
                found.append((pair.ratio, dtype, f"{pair.mine.name}\ndemi {digits(pair.mine.us)} µs, PyTorch "
                              f"{digits(pair.other.us)} µs"))
        return found

    def sign(row):
        return SLOWER + " " if next(p for d in BAR if (p := pair_of(row, d, peer))).slower else ""

    used = [d for d in DTYPES if any(pair_of(r, d, peer) for r in rows)]
    bars = [d for d in used if any(values(r)[0][1] == d for r in rows)]
    legend = dtype_entries(used, bars)
    return log_chart(rows, values, "demi against PyTorch: PyTorch's time / demi's time (×, logarithmic; right of 1× "
                     "demi is faster)", legend, sign)


def ceiling_share(rows):
    """Share of the measured ceiling: a bar for FP16 (or the row's own dtype), rings for the others."""
    def values(row):
        return [(r.get("ceiling_percent"), d, r.name) for d in BAR
                if (r := row.timed(d)) and r.get("ceiling_percent") is not None]

    rows = by_family([r for r in one_a_shape(rows) if values(r)])
    if not rows:
        return ""
    left, right = margin(rows), WIDTH - 90
    high = max(105.0, max(v for r in rows for v, _, _ in values(r)) * 1.02)
    step = 20 if high <= 160 else 50 if high <= 400 else 100 if high <= 1000 else 10 ** int(math.log10(high))

    def at(value):
        return left + value / high * (right - left)

    chart = Chart(rows, list(range(0, int(high) + 1, step)), at, left)
    title = "share of the measured ceiling (%): the time that bandwidth or arithmetic needs / the time taken"
    chart.frame(title, lambda v: f"{v} %", marks=(0, 100))
    for i, row in enumerate(rows):
        shown = values(row)
        share, dtype, name = shown[0]
        chart.body.append(svg.rect(left, chart.y(i) - 6, max(at(share) - left, 1), 12, f"bar fill-{dtype}",
                                   f"{name}\n{share:.0f} %"))
        for other, kind, name in shown[1:]:
            chart.body.append(svg.marker("elementwise", at(other), chart.y(i), f"ring line-{kind}",
                                         f"{name}\n{other:.0f} %"))
        chart.body.append(svg.text(WIDTH - 8, chart.y(i) + 4, f"{share:.0f} %", "value", "end"))
    used = [d for d in DTYPES if any(row.timed(d) for row in rows)]
    bars = {values(r)[0][1] for r in rows}
    chart.body += legend_of(left, dtype_entries(used, bars))
    return svg.figure(WIDTH, chart.height, chart.body, title)
