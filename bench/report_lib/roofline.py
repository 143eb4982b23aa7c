"""The roofline (Williams, Waterman and Patterson, 2009): how fast against how much arithmetic a byte brings.

Attainable TFLOP/s = min(peak of the dtype, operations per byte x copy bandwidth); both roofs are measured ceilings.
"""
import math

from . import labels, svg
from .results import DTYPES
from .table import NAMES, digits

WIDTH, HEIGHT = 1040, 600
LEFT, RIGHT, TOP, BOTTOM = 72, 172, 58, 56


def plotted(run):
    return [r for r in run.in_grammar() if not r.error and r.us > 0 and (r.get("flops") or 0) > 0
            and (r.get("bytes") or 0) > 0]


def place(r):
    """Operations per byte, TFLOP/s."""
    return r.get("flops") / r.get("bytes"), r.get("flops") / r.us / 1e6


class Plot:
    def __init__(self, points, roofs, copy):
        xs, ys = zip(*map(place, points))
        high = max([*ys, *roofs.values()])
        ridge = [peak / copy for peak in roofs.values()] if copy else []
        self.x0, self.x1 = math.log10(min(xs) / 2), math.log10(max([*xs, *ridge]) * 3)
        self.y0, self.y1 = math.log10(min(ys) / 2), math.log10(high * 1.6)

    def x(self, value):
        return LEFT + (math.log10(value) - self.x0) / (self.x1 - self.x0) * (WIDTH - LEFT - RIGHT)

    def y(self, value):
        return HEIGHT - BOTTOM - (math.log10(value) - self.y0) / (self.y1 - self.y0) * (HEIGHT - TOP - BOTTOM)

    def axes(self):
        body = []
        for value, label in svg.log_ticks(self.x0, self.x1):
            x = self.x(value)
            body += [svg.line(x, TOP, x, HEIGHT - BOTTOM, "grid"),
                     svg.text(x, HEIGHT - BOTTOM + 18, label, "tick", "middle")]
        for value, label in svg.log_ticks(self.y0, self.y1):
            y = self.y(value)
            body += [svg.line(LEFT, y, WIDTH - RIGHT, y, "grid"), svg.text(LEFT - 8, y + 4, label, "tick", "end")]
        body.append(svg.line(LEFT, HEIGHT - BOTTOM, WIDTH - RIGHT, HEIGHT - BOTTOM, "axis"))
        body.append(svg.text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 14, "operations per byte that must move (FLOP/B)",
                             "title", "middle"))
        body.append(svg.text(LEFT - 52, TOP - 12, "TFLOP/s", "title"))
        return body


def memory_label(plot, copy, start, stop, points):
    """The memory roof's name along it, above, where it covers the fewest points; and the boxes that it covers."""
    slope = math.atan2(plot.y(stop * copy) - plot.y(start * copy), plot.x(stop) - plot.x(start))
    run, rise = math.cos(slope), math.sin(slope)
    name = f"memory: copy {1000 * copy:.0f} GB/s"
    dots = [(plot.x(x) - 7, plot.y(y) - 7, plot.x(x) + 7, plot.y(y) + 7) for x, y in map(place, points)]
    best = None
    for step in range(2, 80):
        at = start * (stop / start) ** (step / 100)
        x, y = plot.x(at), plot.y(at * copy)
        middles = [(x + i * run + 13 * rise, y + i * rise - 13 * run) for i in range(0, int(svg.text_width(name)), 6)]
        boxes = [(cx - 8, cy - 8, cx + 8, cy + 8) for cx, cy in middles]
        inside = middles[-1][0] < plot.x(stop) and middles[-1][1] > TOP
        cost = (not inside, sum(any(svg.overlap(b, d) for b in boxes) for d in dots), abs(step - 40))
        if best is None or cost < best[0]:
            best = (cost, x, y, boxes)
    _, x, y, boxes = best
    turn = f"rotate({math.degrees(slope):.2f} {x:.1f} {y:.1f})"
    return f'<g transform="{turn}">{svg.text(x, y - 8, name, "muted on-line")}</g>', boxes


def draw_roofs(plot, roofs, copy, points):
    """The lines, their names in the right margin, and boxes along them that labels keep off."""
    body, boxes = [], []
    end = 10 ** plot.x1
    top = max(roofs.values()) if roofs else 10 ** plot.y1
    if copy:
        start = max(10 ** plot.x0, 10 ** plot.y0 / copy)
        stop = min(end, top / copy)
        body.append(svg.line(plot.x(start), plot.y(start * copy), plot.x(stop), plot.y(stop * copy), "roof"))
        steps = 80
        for i in range(steps + 1):
            v = start * (stop / start) ** (i / steps)
            boxes.append((plot.x(v) - 2, plot.y(v * copy) - 2, plot.x(v) + 2, plot.y(v * copy) + 2))
        label, covered = memory_label(plot, copy, start, stop, points)
        body.append(label)
        boxes += covered
    heights = svg.spread_out([plot.y(p) for p in roofs.values()], 16)
    for (dtype, peak), y in zip(roofs.items(), heights):
        ridge = max(peak / copy, 10 ** plot.x0) if copy else 10 ** plot.x0
        body.append(svg.line(plot.x(ridge), plot.y(peak), WIDTH - RIGHT, plot.y(peak), f"roof line-{dtype}"))
        body.append(svg.line(WIDTH - RIGHT, plot.y(peak), WIDTH - RIGHT + 10, y, f"leader line-{dtype}"))
        body.append(svg.text(WIDTH - RIGHT + 14, y + 4, f"{NAMES[dtype]} {digits(peak)} TFLOP/s", f"ink-{dtype}"))
        boxes.append((plot.x(ridge), plot.y(peak) - 2, WIDTH - RIGHT, plot.y(peak) + 2))
    return body, boxes


def tooltip(r):
    x, y = place(r)
    parts = [r.name, f"{digits(r.us)} µs, {digits(y)} TFLOP/s at {digits(x)} FLOP/B"]
    if r.get("ceiling_percent") is not None:
        parts.append(f"{r.get('ceiling_percent'):.0f} % of the ceiling")
    return "\n".join(parts + [r.label] * bool(r.label))


def legend(points):
    body, x = [], LEFT
    for dtype in (d for d in DTYPES if any(r.dtype == d for r in points)):
        body += [svg.marker("elementwise", x + 6, 14, f"dot fill-{dtype}"), svg.text(x + 17, 18, NAMES[dtype])]
        x += 34 + svg.text_width(NAMES[dtype])
    if any(r.cache == "warm" for r in points):
        for style, name in (("dot fill-none", "cold L2"), ("ring line-none", "warm L2")):
            body += [svg.marker("elementwise", x + 6, 14, style), svg.text(x + 17, 18, name)]
            x += 34 + svg.text_width(name)
    x = WIDTH - RIGHT + 14
    y = HEIGHT - BOTTOM - 18 * len({r.family for r in points}) + 10
    for family in (f for f in svg.MARKERS if any(r.family == f for r in points)):
        body += [svg.marker(family, x + 6, y - 4, "dot fill-none"), svg.text(x + 18, y, family)]
        y += 18
    return body


def roofline(run):
    """The figure; an explanation in its place where the run lacks operations or bytes."""
    points = plotted(run)
    if not points:
        return '<p class="missing">No benchmark here gives both operations and bytes: there is no roofline to draw.</p>'
    used = [d for d in DTYPES if any(r.dtype == d for r in points)]
    roofs = {d: c for d in used if (c := run.ceiling(f"ceiling_{d}_TFLOPs"))}
    copy = run.ceiling("ceiling_copy_GBps")
    copy = copy / 1000 if copy else None  # TFLOP/s a FLOP/B
    plot = Plot(points, roofs, copy)
    lines, boxes = draw_roofs(plot, roofs, copy, points)
    body = plot.axes() + lines + legend(points)
    dots = [(r, plot.x(x), plot.y(y)) for r in points for x, y in (place(r),)]
    names = labels.draw(dots, boxes, (LEFT, TOP, WIDTH - RIGHT, HEIGHT - BOTTOM))
    for r in sorted(points, key=lambda r: (r.dtype == "fp16", r.us)):
        x, y = place(r)
        style = f"ring line-{r.dtype}" if r.cache == "warm" else f"dot fill-{r.dtype}"
        body.append(svg.marker(r.family, plot.x(x), plot.y(y), style, tooltip(r)))
    return svg.figure(WIDTH, HEIGHT, body + names, "Roofline")
