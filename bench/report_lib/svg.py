"""Small pieces of SVG: text whose width is known well enough to place it, markers, axes in decades.

Colours are classes that the page's style sheet defines for light and for dark.
"""
import html
import math

CHAR = 7.4  # mean advance of a character at 12 px in a wide sans-serif: browsers differ in the font they have


def text_width(text, size=12):
    return len(text) * CHAR * size / 12


def text(x, y, content, style="", anchor="start", size=12):
    return (f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}" class="{style}">'
            f"{html.escape(content)}</text>")


def line(x1, y1, x2, y2, style):
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" class="{style}"/>'


def rect(x, y, width, height, style, title=""):
    inner = f"<title>{html.escape(title)}</title>" if title else ""
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" class="{style}">{inner}</rect>'


def polygon(n, radius, turn):
    return [(radius * math.cos(turn + 2 * math.pi * i / n), radius * math.sin(turn + 2 * math.pi * i / n))
            for i in range(n)]


def star(points, outer, inner):
    return [((outer if i % 2 == 0 else inner) * math.sin(math.pi * i / points),
             -(outer if i % 2 == 0 else inner) * math.cos(math.pi * i / points)) for i in range(2 * points)]


MARKERS = {  # outlines around the origin, of about the same area
    "elementwise": polygon(24, 4.6, 0),
    "batch norm": polygon(4, 5.8, math.pi / 4),
    "pooling, loss, sums": polygon(3, 6.2, -math.pi / 2),
    "optimizer": polygon(3, 6.2, math.pi / 2),
    "convolution": polygon(4, 6.0, 0),
    "matrix product": star(5, 7.4, 3.3),
    "ladder": [(-6, -2), (-2, -2), (-2, -6), (2, -6), (2, -2), (6, -2), (6, 2), (2, 2), (2, 6), (-2, 6), (-2, 2),
               (-6, 2)],
}


def marker(family, x, y, style, title=""):
    points = " ".join(f"{x + dx:.1f},{y + dy:.1f}" for dx, dy in MARKERS[family])
    inner = f"<title>{html.escape(title)}</title>" if title else ""
    return f'<polygon points="{points}" class="{style}">{inner}</polygon>'


def figure(width, height, body, name):
    return (f'<div class="chart"><svg viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" height="{height:.0f}" '
            f'role="img" aria-label="{html.escape(name)}">' + "\n".join(body) + "</svg></div>")


def overlap(a, b):
    """Boxes (left, top, right, bottom)."""
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def spread_out(wanted, gap):
    """Positions near the wanted ones, in their order, that are at least `gap` apart."""
    order = sorted(range(len(wanted)), key=lambda i: wanted[i])
    placed = [wanted[i] for i in order]
    for _ in range(100):
        moved = False
        for i in range(1, len(placed)):
            short = gap - (placed[i] - placed[i - 1])
            if short > 1e-6:
                placed[i - 1] -= short / 2
                placed[i] += short / 2
                moved = True
        if not moved:
            break
    result = [0.0] * len(wanted)
    for i, y in zip(order, placed):
        result[i] = y
    return result


def decade_label(exponent):
    if -3 <= exponent <= 4:
        return f"{10.0 ** exponent:.{max(0, -exponent)}f}"
    return "10" + "".join("⁻⁰¹²³⁴⁵⁶⁷⁸⁹"["-0123456789".index(c)] for c in str(exponent))


def log_ticks(low, high):
    """Values and labels between 10^low and 10^high: decades, and 2 and 5 of each where there are fewer than three."""
    decades = range(math.ceil(low), math.floor(high) + 1)
    if len(decades) >= 3:
        return [(10.0 ** e, decade_label(e)) for e in decades]
    values = [(digit, e) for e in range(math.floor(low), math.floor(high) + 1) for digit in (1, 2, 5)]
    return [(digit * 10.0 ** e, decade_label(e) if digit == 1 else f"{digit * 10.0 ** e:g}") for digit, e in values
            if low <= e + math.log10(digit) <= high]
