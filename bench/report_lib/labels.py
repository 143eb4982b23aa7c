"""Names beside the points of a plot, placed so that they cover neither points nor lines nor each other."""
from . import svg

MOST = 30
SIZE, HEIGHT = 11, 13
FIRST = ("matrix product", "convolution", "batch norm")  # the families whose labels are placed first


def candidates(dots):
    """Op -> its dots that may carry its name: 16-bit and cold ones where there are, those with the most work first.
    The important ops come first, then those that take longest."""
    by_op = {}
    for dot in dots:
        by_op.setdefault(dot[0].op, []).append(dot)
    chosen = {}
    for op, own in by_op.items():
        def rank(dot):
            return dot[0].dtype == "fp16", dot[0].dtype == "bf16", dot[0].cache != "warm"
        best = max(map(rank, own))
        chosen[op] = sorted((d for d in own if rank(d) == best), key=lambda d: -d[0].get("flops"))
    order = sorted(chosen, key=lambda op: (chosen[op][0][0].family not in FIRST, chosen[op][0][0].family == "ladder",
                                           -chosen[op][0][0].us))
    return {op: chosen[op] for op in order}


def spots(x, y, width, reach):
    """Boxes around a point, at a distance: right, left, below, above, then the corners."""
    d = 0.8 * reach
    corners = [(x + reach, y - 6), (x - reach - width, y - 6), (x - width / 2, y + reach - 2),
               (x - width / 2, y - reach - 12), (x + d, y + d), (x + d, y - reach - 6), (x - width - d, y + d),
               (x - width - d, y - reach - 6)]
    return [(left, top, left + width, top + HEIGHT) for left, top in corners]


def nearest(x, y, box):
    return min(max(x, box[0]), box[2]), min(max(y, box[1]), box[3])


def leader(x, y, box):
    """Small boxes on the line from a point to its label, but for its start among other points."""
    to_x, to_y = nearest(x, y, box)
    middles = [(x + i / 12 * (to_x - x), y + i / 12 * (to_y - y)) for i in range(4, 13)]
    return [(mx - 1, my - 1, mx + 1, my + 1) for mx, my in middles]


def meets(boxes, others):
    return any(svg.overlap(a, b) for a in boxes for b in others)


def inside(box, frame):
    return frame[0] < box[0] and frame[1] < box[1] and box[2] < frame[2] and box[3] < frame[3]


def draw(dots, boxes, frame):
    """dots: (result, x, y); boxes: what labels keep off besides. An op that finds no place is left to its tooltip."""
    taken = boxes + [(x - 6, y - 6, x + 6, y + 6) for _, x, y in dots]
    body, written = [], []  # written: labels and their leaders, which later leaders must not cross
    shown = 0
    for op, own in candidates(dots).items():
        name = op.replace("ladder_", "")
        tries = [(x, y, box, reach > 10) for reach in (10, 22, 38, 56) for _, x, y in own
                 for box in spots(x, y, svg.text_width(name, SIZE), reach) if inside(box, frame)]
        found = next((t for t in tries if not meets([t[2]], taken)
                      and not (t[3] and meets(leader(*t[:3]), written))), None)
        if not found or shown == MOST:
            continue
        x, y, box, far = found
        covered = [box] + (leader(x, y, box) if far else [])
        if far:
            body.append(svg.line(x, y, *nearest(x, y, box), "leader"))
        left = box[2] <= x  # of its point: then what is wider than it was taken for grows away from it
        at, anchor = (box[2], "end") if left else (box[0], "start")
        body.append(svg.text(at, box[1] + 10.5, name, "label", anchor, SIZE))
        taken += covered
        written += covered
        shown += 1
    return body
