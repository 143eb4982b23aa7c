"""The HTML page: header, roofline, bars, tables; one file that needs nothing else, in light and dark."""
import html

from . import against, bars, roofline
from .table import context_items, dtypes_of, main_table, remarks, rows_of

# Dtypes keep their hue in both schemes; on dark they are lighter. Neighbours differ for the colour-blind as well.
STYLE = """
:root { color-scheme: light dark; --ground: #fcfcfb; --ink: #1b1b1a; --muted: #63625d; --grid: #e4e3df; --axis: #9a9890;
  --edge: #d9d8d3; --fp32: #0067b1; --tf32: #a8448f; --fp16: #d0530a; --bf16: #00805b; }
@media (prefers-color-scheme: dark) { :root { --ground: #181817; --ink: #eeede9; --muted: #a9a79f; --grid: #30302d;
  --axis: #77756d; --edge: #3c3b38; --fp32: #5aaef0; --tf32: #e391cd; --fp16: #ff9147; --bf16: #2fc597; } }
body { background: var(--ground); color: var(--ink); font: 15px/1.5 system-ui, sans-serif; margin: 0;
  padding: 24px 28px 60px; }
h1 { font-size: 26px; margin: 0 0 12px; } h2 { font-size: 19px; margin: 44px 0 4px; }
p, li { max-width: 75ch; } .missing { color: var(--muted); }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 2px 18px; margin: 0; } dt { color: var(--muted); }
dd { margin: 0; overflow-wrap: anywhere; } code, .command { font-family: ui-monospace, monospace; font-size: 13px; }
.chart, .scroll { overflow-x: auto; } svg { display: block; font-family: system-ui, sans-serif; }
svg text { fill: var(--ink); } svg .muted, svg .tick { fill: var(--muted); } svg .title { fill: var(--muted); }
svg .label, svg .value, svg .on-line { paint-order: stroke; stroke: var(--ground); stroke-width: 3px;
  stroke-linejoin: round; }
svg .value { font-variant-numeric: tabular-nums; }
.grid { stroke: var(--grid); } .axis, .mark { stroke: var(--axis); stroke-width: 1.3; }
.roof { stroke: var(--muted); stroke-width: 2; } .leader { stroke: var(--axis); stroke-width: 1; }
.dot { stroke: var(--ground); stroke-width: 1; } .ring { fill: var(--ground); stroke-width: 1.8; }
.fill-none { fill: var(--muted); } .line-none { stroke: var(--muted); }
.fill-fp32 { fill: var(--fp32); } .fill-tf32 { fill: var(--tf32); } .fill-fp16 { fill: var(--fp16); }
.fill-bf16 { fill: var(--bf16); } .line-fp32 { stroke: var(--fp32); } .line-tf32 { stroke: var(--tf32); }
.line-fp16 { stroke: var(--fp16); } .line-bf16 { stroke: var(--bf16); } svg .ink-fp32 { fill: var(--fp32); }
svg .ink-tf32 { fill: var(--tf32); } svg .ink-fp16 { fill: var(--fp16); } svg .ink-bf16 { fill: var(--bf16); }
table { border-collapse: collapse; font-size: 12.5px; font-variant-numeric: tabular-nums; }
th, td { padding: 3px 7px; text-align: right; white-space: nowrap; border-bottom: 1px solid var(--edge); }
th { vertical-align: bottom; white-space: normal; min-width: 4.5em; font-weight: 600; }
th:nth-child(-n+3), td:nth-child(-n+3), th:last-child, td:last-child { text-align: left; }
td:last-child { white-space: normal; min-width: 22em; color: var(--muted); }
tbody tr:hover { background: var(--grid); }
"""


def html_table(head, body):
    def cells(tag, row):
        return "<tr>" + "".join(f"<{tag}>{html.escape(c)}</{tag}>" for c in row) + "</tr>"
    return ('<div class="scroll"><table><thead>' + cells("th", head) + "</thead><tbody>"
            + "\n".join(cells("td", row) for row in body) + "</tbody></table></div>")


def header(run, peer):
    items = "".join(f'<dt>{html.escape(term)}</dt><dd{" class=command" if term == "command" else ""}>'
                    f"{html.escape(str(value))}</dd>" for term, value in context_items(run, peer))
    return f"<h1>demi: what half precision buys, op by op</h1><dl>{items}</dl>"


def section(title, text, content):
    return f"<h2>{html.escape(title)}</h2><p>{html.escape(text)}</p>{content}" if content else ""


def against_peer(rows, peer, summary):
    """What is slower, on top; then the bars, and every time."""
    head, body = against.slower_table(rows, peer)
    notes = filter(None, (against.never_slower(rows, peer), against.left_out(peer)))
    return ("".join(f"<p>{html.escape(line)}</p>" for line in summary) + (html_table(head, body) if body else "")
            + "".join(f"<p>{html.escape(line)}</p>" for line in notes)
            + bars.against_peer(rows, peer) + html_table(*against.peer_table(rows, peer)))


def html_page(run, peer=None):
    rows = rows_of(run)
    unplotted = len([r for r in run.in_grammar() if not r.error]) - len(roofline.plotted(run))
    parts = [header(run, peer)]
    summary = against.summary(rows, peer) if peer else []
    parts += [f"<p>{html.escape(line)}</p>" for line in [*remarks(run, rows, peer), " ".join(summary)] if line]
    parts.append(section("Roofline", "A point is a benchmark; left of a dtype's ridge memory limits it, right of it "
                         "arithmetic does. Warm points may rise above the memory roof, which is main memory's. Points "
                         "name themselves under the pointer."
                         + (" FP16's lie over BF16's." if {"fp16", "bf16"} <= set(dtypes_of(rows)) else "")
                         + (f" Not shown: {unplotted} that do no arithmetic, as copies." if unplotted else ""),
                         roofline.roofline(run)))
    parts.append(section("FP16 against FP32", "Half the bytes let an op that memory limits run twice as fast: the "
                         "line at 2×. What goes beyond it comes from tensor cores or from fitting the L2 cache; what "
                         "stays below is limited by something else.", bars.speed_up(rows)))
    parts.append(section("Share of the ceiling", "Against what the same program measured on this card at its start: "
                         "the bandwidth of a copy, and a large matrix product in each dtype.",
                         bars.ceiling_share(rows)))
    if peer:
        parts.append(section("Against PyTorch", "The same ops, shapes and method, measured by "
                             "bench/peers/torch_ops.py. " + against.LEGEND + " The bars are cold where a shape "
                             "was measured cold.", against_peer(rows, peer, summary)))
    parts.append(section("All figures", "µs a call, medians. Bytes saved: FP16 against FP32. Relative error: of FP16 "
                         "unless said otherwise, ‖y − reference‖ / ‖reference‖."
                         + (" Host: time to issue one call." if run.on_gpu() else ""),
                         html_table(*main_table(run, rows))))
    title = f"demi benchmarks, {run.context.get('card') or 'unknown card'}"
    return ('<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><meta name="viewport" '
            f'content="width=device-width, initial-scale=1"><title>{html.escape(title)}</title>'
            f"<style>{STYLE}</style></head>\n<body>\n" + "\n".join(filter(None, parts)) + "\n</body></html>\n")
