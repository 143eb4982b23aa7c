"""Two runs side by side: what got slower by more than noise explains.

A change counts when it exceeds the threshold (5 %) and the floor (0.3 us: what a launch of 2-3 us wobbles by), and
beyond that the noise. Noise within a run: with nine repetitions or more on both sides the Mann-Whitney U test must tell
the two apart, else the change must exceed the spreads of both runs, taken together as sqrt(a^2 + b^2). Noise from run
to run, which no repetition shows (where memory lies, what else the machine does): the change must stand out from those
of all benchmarks, for among hundreds some change by three standard deviations by chance.
"""
import math
import statistics

from .results import InputError
from .table import digits

REPETITIONS_FOR_U = 9
ALPHA = 0.01  # of the U test; runs hold hundreds of benchmarks
DEVIATIONS = 4.5  # of all changes, by which one must stand out: by chance in one of 100,000 benchmarks
MOST_SCATTER = 10  # per cent: many real changes must not hide each other as noise


def mann_whitney_p(a, b):
    """Two-sided p of the U test, by its normal approximation with ties and continuity corrected (good from about 8)."""
    everything = sorted(a + b)
    rank, ties, i = {}, 0, 0
    while i < len(everything):
        j = i
        while j < len(everything) and everything[j] == everything[i]:
            j += 1
        rank[everything[i]] = (i + j + 1) / 2  # the mean of ranks i+1 .. j
        ties += (j - i) ** 3 - (j - i)
        i = j
    n, m = len(a), len(b)
    u = sum(rank[x] for x in a) - n * (n + 1) / 2
    variance = n * m / 12 * ((n + m + 1) - ties / ((n + m) * (n + m - 1)))
    if variance == 0:
        return 1.0
    z = max(0.0, abs(u - n * m / 2) - 0.5) / math.sqrt(variance)
    return math.erfc(z / math.sqrt(2))


def scatter_of(before, after, common):
    """Per cent that a change must exceed to stand out from those of all benchmarks around their median."""
    ratios = [math.log(after.results[n].us / before.results[n].us) for n in common
              if after.results[n].us > 0 and before.results[n].us > 0]
    if len(ratios) < 10:
        return 0.0
    middle = statistics.median(ratios)
    deviation = 1.4826 * statistics.median(abs(r - middle) for r in ratios)  # robust: changes proper do not count
    return min(MOST_SCATTER, 100 * DEVIATIONS * deviation)


def verdict_of(a, b, threshold, floor, scatter):
    """'slower', 'faster' or '' and what decided it."""
    if a.error and b.error:
        return "", "failed in both"
    if a.error or b.error:
        return ("slower", f"fails now: {b.error}") if b.error else ("", f"failed before: {a.error}")
    if not a.us > 0 or not b.us > 0:
        return "", "no time"
    change = 100 * (b.us / a.us - 1)
    size = 100 * (max(a.us, b.us) / min(a.us, b.us) - 1)  # the same for a slow-down and for its reversal
    direction = "slower" if change > 0 else "faster"
    if size <= threshold:
        return "", ""
    if abs(b.us - a.us) <= floor:
        return "", f"under {floor:g} µs"
    proof = ""
    if min(len(a.repetitions), len(b.repetitions)) >= REPETITIONS_FOR_U:
        p = mann_whitney_p(a.repetitions, b.repetitions)
        if p >= ALPHA:
            return "", f"noise: p = {p:.2f}"
        proof = f"p = {p:.1g}"
    elif size <= (noise := math.hypot(a.spread_percent, b.spread_percent)):
        return "", f"noise: the runs spread by {noise:.0f} %"
    return (direction, proof) if size > scatter else ("", f"noise: benchmarks scatter by {scatter:.0f} %")


def common_drift(before, after, common):
    """A line where all benchmarks moved by about the same: then no single kernel changed. Empty where they did not."""
    ratios = sorted(after.results[n].us / before.results[n].us for n in common
                    if after.results[n].us > 0 and before.results[n].us > 0)
    if len(ratios) < 5:
        return ""
    middle = statistics.median(ratios)
    together = sum(1 for r in ratios if abs(r / middle - 1) < 0.03) / len(ratios)
    if abs(middle - 1) < 0.02 or together < 0.8:
        return ""
    clocks = [f"{what} clock {x} -> {y} MHz" for what, key in (("SM", "sm_clock_MHz"), ("memory", "memory_clock_MHz"))
              if (x := before.context.get(key)) != (y := after.context.get(key)) and x and y]
    return (f"The benchmarks moved together: {100 * together:.0f} % of them within 3 % of the median change, "
            f"{100 * (middle - 1):+.1f} %. That is the machine (clocks, another load, another card) rather than one "
            f"kernel{': ' + ', '.join(clocks) if clocks else ''}.")


def report(before, after, threshold, floor):
    """The text, and how many benchmarks got slower."""
    common = [n for n in before.results if n in after.results]
    if not common:
        raise InputError(f"{before.path} and {after.path} have no benchmark in common")
    lines, counts = [], {"slower": 0, "faster": 0, "": 0}
    width = max(len(n) for n in common)
    lines.append(f"{'benchmark':<{width}}  {'old, µs':>9}  {'new, µs':>9}  {'change':>8}  verdict")
    changed = []
    scatter = scatter_of(before, after, common)
    for name in common:
        a, b = before.results[name], after.results[name]
        verdict, why = verdict_of(a, b, threshold, floor, scatter)
        counts[verdict] += 1
        change = f"{100 * (b.us / a.us - 1):+.1f} %" if a.us > 0 and b.us > 0 else "–"
        told = {"slower": "SLOWER", "faster": "faster", "": "same"}[verdict] + (f" ({why})" if why else "")
        line = f"{name:<{width}}  {digits(a.us):>9}  {digits(b.us):>9}  {change:>8}  {told}"
        lines.append(line)
        if verdict == "slower":
            changed.append(line)
    for key in ("card", "driver", "cuda", "cudnn"):
        x, y = before.context.get(key), after.context.get(key)
        if x and y and x != y:
            lines.append(f"Beware: {key} differs: {x} before, {y} after.")
    for one, other in ((before, after), (after, before)):
        missing = [n for n in one.results if n not in other.results]
        if missing:
            lines += [f"Only in {one.path} ({len(missing)}):"] + [f"  {n}" for n in missing]
    if drift := common_drift(before, after, common):
        lines.append(drift)
    if changed and len(common) > len(changed):
        lines += ["Slower:"] + [f"  {line}" for line in changed]
    lines.append(f"{len(common)} benchmarks in both: {counts['slower']} slower, {counts['faster']} faster, "
                 f"{counts['']} the same within max({threshold:g} %, {floor:g} µs, noise).")
    return "\n".join(lines) + "\n", counts["slower"]
