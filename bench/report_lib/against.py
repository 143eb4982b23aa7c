"""A run against a peer's, PyTorch's: where demi is the slower one, op by op, and a table of every time.

All ratios are speed-ups, the peer's time / demi's: under 1 demi is slower.
"""
import math
import statistics
from dataclasses import dataclass, field

from .results import DTYPES, InputError
from .table import NAMES, digits, dtypes_of, markdown_table, rows_of, times

SLOWER = "\u25bc"  # in front of a ratio
LEGEND = f"Ratios are PyTorch's time / demi's; {SLOWER} where demi is slower by more than the spread of both."


def check(run, peer):
    if not any(name in peer.results for name in run.results):
        raise InputError(f"{run.path} and {peer.path} have no benchmark in common")


@dataclass
class Pair:
    """A benchmark of demi's and the peer's of the same name."""
    mine: object
    other: object

    @property
    def ratio(self):
        return self.other.us / self.mine.us

    @property
    def slower(self):
        noise = math.hypot(self.mine.spread_percent, self.other.spread_percent)
        return 1 / self.ratio > 1 + noise / 100

    @property
    def shown(self):
        return (SLOWER + " " if self.slower else "") + times(self.ratio)


def pair_of(row, dtype, peer):
    """None where one of the two is missing or failed or took no time."""
    mine = row.timed(dtype)
    other = peer.results.get(mine.name) if mine else None
    return Pair(mine, other) if other and not other.error and mine.us > 0 and other.us > 0 else None


@dataclass
class Op:
    """All pairs of an op."""
    name: str
    pairs: list = field(default_factory=list)

    @property
    def library(self):
        """Whose kernels demi calls: cuDNN's or cuBLASLt's, as the labels say; empty where it has its own."""
        labels = [p.mine.label for p in self.pairs]
        return next((name for name in ("cuDNN", "cuBLASLt") if any(x.startswith(name) for x in labels)), "")

    @property
    def slower(self):
        return sorted((p for p in self.pairs if p.slower), key=lambda p: p.ratio)

    @property
    def mean(self):
        return math.exp(statistics.fmean(math.log(p.ratio) for p in self.pairs))


def ops_of(rows, peer):
    ops = {}
    for row in rows:
        for pair in filter(None, (pair_of(row, d, peer) for d in DTYPES)):
            ops.setdefault(row.op, Op(row.op)).pairs.append(pair)
    return list(ops.values())


def counted(ops):
    slower, pairs = sum(len(op.slower) for op in ops), sum(len(op.pairs) for op in ops)
    return f"slower in {slower} of {pairs} benchmarks" if slower else f"not slower in any of {pairs} benchmarks"


def summary(rows, peer):
    """Sentences: how often demi is slower, with its own kernels and with a library's; and which ops never are."""
    ops = ops_of(rows, peer)
    own, others = [op for op in ops if not op.library], [op for op in ops if op.library]
    said = []
    if own:
        said.append(f"Against PyTorch, demi's own kernels are {counted(own)}, by more than the spread of both.")
    if others:
        said.append(f"Ops that call cuDNN or cuBLASLt, as PyTorch does: {counted(others)}.")
    return said


def never_slower(rows, peer):
    names = [op.name for op in ops_of(rows, peer) if not op.slower]
    return f"Nowhere slower: {', '.join(names)}." if names else ""


def slower_table(rows, peer):
    """A row an op that is slower somewhere: demi's own kernels first, then those with the worst benchmark."""
    head = ["op", "kernels of", "slower in", "geometric mean", "where, the worst first"]
    ops = sorted((op for op in ops_of(rows, peer) if op.slower), key=lambda op: (op.library != "", op.slower[0].ratio))
    body = []
    for op in ops:
        where = [f"{times(p.ratio)} {NAMES[p.mine.dtype]} {p.mine.shape}{' ' + p.mine.cache if p.mine.cache else ''} "
                 f"({digits(p.mine.us)} against {digits(p.other.us)} µs)" for p in op.slower]
        body.append([op.name, op.library or "demi", f"{len(op.slower)} of {len(op.pairs)}", times(op.mean),
                     "; ".join(where)])
    return head, body


def left_out(peer):
    """What PyTorch's script says that it did not measure, an op and reason once."""
    names = peer.context.get("left_out")
    ops = {}
    for name, why in names.items() if isinstance(names, dict) else ():
        op, dtype = (str(name).split("/") + [""])[:2]
        ops.setdefault((op, str(why)), {})[NAMES.get(dtype, dtype)] = True
    told = [f"{op} in {', '.join(dtypes)} ({why})" for (op, why), dtypes in ops.items()]
    return f"Not in PyTorch's file: {'; '.join(told)}." if told else ""


def peer_table(rows, peer):
    """Both times and their ratio, by dtype; only rows that the peer has."""
    dtypes = dtypes_of(rows)
    shown = [row for row in rows if any(pair_of(row, d, peer) for d in dtypes)]
    dtypes = [d for d in dtypes if any(pair_of(row, d, peer) for row in shown)]
    head = ["op", "shape", "L2"]
    for d in dtypes:
        head += [f"demi {NAMES[d]}, µs", f"PyTorch {NAMES[d]}, µs", f"demi over PyTorch, {NAMES[d]}"]
    head.append("PyTorch's calls")
    body = []
    for row in shown:
        cells, labels = [row.op, row.shape, row.cache or "–"], {}
        for d in dtypes:
            pair = pair_of(row, d, peer)
            cells += [digits(pair.mine.us), digits(pair.other.us), pair.shown] if pair else ["–"] * 3
            if pair and pair.other.label:
                labels.setdefault(pair.other.label, []).append(NAMES[d])
        by_label = [f"{', '.join(names)}: {label}" for label, names in labels.items()]
        cells.append(next(iter(labels)) if len(labels) == 1 else "; ".join(by_label))
        body.append(cells)
    return head, body


def markdown(run, peer):
    rows = rows_of(run)
    text = "\n## Against PyTorch\n\n" + "\n".join([*summary(rows, peer), LEGEND]) + "\n\n"
    head, body = slower_table(rows, peer)
    if body:
        text += markdown_table(head, body) + "\n"
    for line in filter(None, (never_slower(rows, peer), left_out(peer))):
        text += line.replace("<", "&lt;") + "\n"
    return text + "\n" + markdown_table(*peer_table(rows, peer))
