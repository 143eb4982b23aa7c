"""Tables of a run: rows of FP16 against the other dtypes, as cells for Markdown and for HTML."""
import math
import re
import statistics
from dataclasses import dataclass

from .results import DTYPES, InputError

NAMES = {"fp32": "FP32", "tf32": "TF32", "fp16": "FP16", "bf16": "BF16"}
VERSIONS = {"driver": "driver", "cuda": "CUDA", "cudnn": "cuDNN", "cublas": "cuBLAS"}


@dataclass
class Row:
    """One op, shape and state of the cache in every dtype it was measured in."""
    op: str
    shape: str
    cache: str
    by_dtype: dict

    def main(self):
        """The result that speaks for the row: FP16 where there is one."""
        return next((self.by_dtype[d] for d in ("fp16", "bf16", "tf32", "fp32") if self.timed(d)), None)

    def timed(self, dtype):
        result = self.by_dtype.get(dtype)
        return result if result and not result.error else None

    def ratio(self, slow, fast):
        """How many times faster `fast` is; None where one of the two is missing."""
        a, b = self.timed(slow), self.timed(fast)
        return a.us / b.us if a and b and b.us > 0 else None


def rows_of(run):
    rows = {}
    for result in run.in_grammar():
        rows.setdefault(result.key, Row(*result.key, {})).by_dtype[result.dtype] = result
    return list(rows.values())


def check(run):
    if not run.in_grammar():
        raise InputError(f"{run.path}: no benchmark is named <op>/<dtype>/<shape>[/<cold|warm>] as demi_bench's are; "
                         f"the first is {next(iter(run.results))}")


def digits(value, significant=3):
    """Three significant digits without an exponent: 0.0123, 1.23, 12.3, 123, 1234."""
    if value is None or not math.isfinite(value):
        return "–"
    if value == 0:
        return "0"
    places = significant - 1 - math.floor(math.log10(abs(value)))
    return f"{value:.{max(0, places)}f}"


def times(ratio):
    return "–" if ratio is None else f"{ratio:.2f}×"


def percent(value):
    return "–" if value is None else f"{value:.0f} %"


def bytes_saved(row):
    wide, half = row.timed("fp32"), row.timed("fp16") or row.timed("bf16")
    a, b = (r.get("bytes") if r else None for r in (wide, half))
    return 100 * (1 - b / a) if a and b else None


def notes(row):
    """Labels: what all dtypes share once, the rest by dtype; then what failed."""
    labels = {d: r.label for d, r in row.by_dtype.items() if r.label}
    if len(set(labels.values())) == 1 and len(labels) == len(row.by_dtype):
        text = [next(iter(labels.values()))]
    else:
        by_label = {}
        for dtype, label in labels.items():
            by_label.setdefault(label, []).append(NAMES[dtype])
        text = [f"{', '.join(dtypes)}: {label}" for label, dtypes in by_label.items()]
    text += [f"{NAMES[d]} failed: {r.error}" for d, r in row.by_dtype.items() if r.error]
    return "; ".join(text)


def dtypes_of(rows):
    return [d for d in DTYPES if any(d in row.by_dtype for row in rows)]


def time_cell(result):
    return "–" if result is None else "failed" if result.error else digits(result.us)


def error_cell(result):
    error = result.get("relative_error") if result else None
    if error is None:
        return "–"
    return (f"{error:.1e}" if error else "0") + ("" if result.dtype == "fp16" else f" ({NAMES[result.dtype]})")


def main_table(run, rows):
    """Header and rows of cells. Columns of dtypes that were not measured are left out."""
    dtypes = dtypes_of(rows)
    pairs = [("fp32", "fp16"), ("tf32", "fp16")] if "fp16" in dtypes else [("fp32", "bf16")]
    pairs = [p for p in pairs if any(row.ratio(*p) for row in rows)]
    head = ["op", "shape", "L2"] + [f"{NAMES[d]}, µs" for d in dtypes]
    head += [f"{NAMES[fast]} over {NAMES[slow]}" for slow, fast in pairs]
    head += ["bytes saved", "share of ceiling, " + " / ".join(NAMES[d] for d in dtypes), "relative error"]
    head += ["host, µs"] * run.on_gpu() + ["engine, notes"]
    body = []
    for row in rows:
        result = row.main()
        cells = [row.op, row.shape, row.cache or "–"] + [time_cell(row.by_dtype.get(d)) for d in dtypes]
        cells += [times(row.ratio(*p)) for p in pairs]
        cells.append(percent(bytes_saved(row)))
        shares = [row.timed(d).get("ceiling_percent") if row.timed(d) else None for d in dtypes]
        known = any(s is not None for s in shares)
        cells.append(" / ".join("–" if s is None else f"{s:.0f}" for s in shares) + " %" if known else "–")
        cells.append(error_cell(result))
        if run.on_gpu():
            cells.append(digits(result.get("host_us"), 2) if result else "–")
        cells.append(notes(row))
        body.append(cells)
    return head, body


def version(text):
    """cuDNN's 91900 as 9.19.0; anything else as it is."""
    if re.fullmatch("9[0-9]{4}|[1-9][0-9]{5}", str(text)):
        return f"{int(text) // 10000}.{int(text) // 100 % 100}.{int(text) % 100}"
    return text


def context_items(run, peer=None):
    """What was measured where: pairs of a term and its text, only what the context holds."""
    context = run.context
    card = context.get("card") or context.get("host_name") or "unknown machine"
    items = [("card", card)]
    items += [(name, context[key]) for key, name in VERSIONS.items() if context.get(key)]
    if context.get("demi_commit"):
        items.append(("demi", context["demi_commit"]))
    if context.get("date"):
        items.append(("date", context["date"]))
    clocks = [f"{what} {context[key]} MHz" for what, key in (("SM", "sm_clock_MHz"), ("memory", "memory_clock_MHz"))
              if context.get(key)]
    if clocks:
        items.append(("clocks", ", ".join(clocks)))
    ceilings = [f"{NAMES[d]} {digits(c)} TFLOP/s" for d in DTYPES if (c := run.ceiling(f"ceiling_{d}_TFLOPs"))]
    if copy := run.ceiling("ceiling_copy_GBps"):
        ceilings.insert(0, f"copy {copy:.0f} GB/s")
    if ceilings:
        items.append(("ceilings, measured", ", ".join(ceilings)))
    if l2 := run.ceiling("l2_bytes"):
        items.append(("L2", f"{l2 / 2**20:.0f} MiB"))
    if context.get("command"):
        items.append(("command", context["command"]))
    if peer:
        versions = [f"{name} {version(peer.context[key])}".strip()
                    for key, name in {"torch": "", **VERSIONS}.items() if peer.context.get(key)]
        items.append(("PyTorch", ", ".join(versions) + f" on {peer.context.get('card', 'an unnamed card')}"))
    return items


def remarks(run, rows, peer=None):
    """Sentences a reader needs beside the figures."""
    said = []
    outside = len(run.results) - len(run.in_grammar())
    if outside:
        said.append(f"{outside} benchmarks named otherwise than <op>/<dtype>/<shape> are left out.")
    spreads = [r.spread_percent for r in run.timed() if r.spread_percent]
    if spreads:
        said.append("Times are medians a call. Their spread, (p90 - p10) / median, is "
                    f"{statistics.median(spreads):.1f} % for the median benchmark and {max(spreads):.1f} % for "
                    "the worst.")
    hosts = [r for r in run.timed() if r.get("host_us")] if run.on_gpu() else []
    bound = [r for r in hosts if r.get("host_us") > r.us]
    if hosts:
        said.append(f"Issuing a call takes the host {digits(statistics.median(r.get('host_us') for r in hosts), 2)} µs "
                    f"(median); in {len(bound)} of {len(hosts)} benchmarks that is longer than the call itself.")
    if peer and peer.context.get("card") and run.context.get("card") and peer.context["card"] != run.context["card"]:
        said.append(f"Beware: PyTorch ran on another card ({peer.context['card']}) than demi ({run.context['card']}).")
    return said


def escaped(cell):
    return cell.replace("|", "\\|").replace("\n", " ").replace("<", "&lt;")


def markdown_table(head, body):
    left = {"op", "shape", "L2", "engine, notes", "PyTorch's calls", "kernels of", "where, the worst first"}
    lines = [head, [":--" if h in left else "--:" for h in head], *body]
    return "\n".join("| " + " | ".join(escaped(c) for c in cells) + " |" for cells in lines) + "\n"


def markdown(run, peer=None):
    rows = rows_of(run)
    text = "\n".join(f"- {term}: {escaped(str(value))}" for term, value in context_items(run, peer)) + "\n\n"
    text += markdown_table(*main_table(run, rows)) + "\n"
    return text + "".join(f"{line}\n" for line in map(escaped, remarks(run, rows, peer)))
