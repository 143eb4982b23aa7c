"""Reads Google Benchmark's JSON: one Result a benchmark, whether it ran once, in repetitions or as aggregates only.

Names are <op>/<dtype>/<shape>[/<cold|warm>]; what Google Benchmark appends (/manual_time, /repeats:9, ...) is stripped.
"""
import argparse
import json
import math
import re
import statistics
from dataclasses import dataclass, field

DTYPES = ("fp32", "tf32", "fp16", "bf16")
COUNTERS = ("bytes", "flops", "GB/s", "TFLOP/s", "ceiling_percent", "floor_us", "relative_error", "host_us")
TO_US = {"ns": 1e-3, "us": 1.0, "ms": 1e3, "s": 1e6}
APPENDED = re.compile(r"/(?:manual_time|real_time|process_time|(?:iterations|repeats|min_time|min_warmup_time|threads)"
                      r":[^/]*)(?=/|$)")
FAMILIES = (("ladder", "ladder_"), ("convolution", "conv_"), ("matrix product", "matmul|linear"),
            ("batch norm", "batch_norm"), ("optimizer", "sgd|adam|finite_check"),
            ("pooling, loss, sums", "max_pool|avg_pool|global_avg_pool|cross_entropy|sum|amax"), ("elementwise", ""))


class InputError(Exception):
    """What the user gave cannot be used; the message is the one line to show."""


class Parser(argparse.ArgumentParser):
    def error(self, message):
        raise InputError(f"{message} (--help shows how to call it)")


@dataclass
class Result:
    name: str
    us: float                # device time a call: the median over replays and repetitions
    spread_percent: float    # (p90 - p10) / median; 0 where nothing is known
    counters: dict
    label: str = ""
    repetitions: list = field(default_factory=list)  # us, one a repetition
    error: str = ""          # why it did not run; us is NaN then
    op: str = ""
    dtype: str = ""
    shape: str = ""
    cache: str = ""          # cold, warm or "" where the name does not say

    @property
    def key(self):
        return self.op, self.shape, self.cache

    @property
    def family(self):
        return next(family for family, pattern in FAMILIES if re.match(pattern, self.op))

    def get(self, counter):
        """A counter's value; None where it is missing or no number."""
        return self.counters.get(counter)


@dataclass
class Run:
    path: str
    context: dict
    results: dict  # name -> Result, in the file's order

    def timed(self):
        return [r for r in self.results.values() if not r.error]

    def in_grammar(self):
        return [r for r in self.results.values() if r.dtype]

    def on_gpu(self):
        """Whether a host issues the calls: on the CPU its time is the call's own and says nothing."""
        return bool(self.context.get("driver") or self.context.get("cuda"))

    def ceiling(self, key):
        """A ceiling of the context, which holds strings; None where it was not measured."""
        try:
            value = float(self.context.get(key, "nan"))
        except (TypeError, ValueError, OverflowError):
            return None
        return value if is_time_or_rate(value) else None


def is_time_or_rate(value):
    """Whether it can be one: on a logarithmic axis, too."""
    return 1e-15 < value < 1e15


def stripped(name):
    return APPENDED.sub("", name)


def split_name(name):
    """op, dtype, shape, cache; four empty strings for a name outside the grammar."""
    parts = name.split("/")
    if len(parts) not in (3, 4) or parts[1] not in DTYPES or parts[3:] not in ([], ["cold"], ["warm"]):
        return "", "", "", ""
    return parts[0], parts[1], parts[2], (parts[3:] or [""])[0]


def why_not(error, text):
    """What a failed parse says; that the file ends too early where it does."""
    if not isinstance(error, json.JSONDecodeError):
        return f": {error}"
    if not text.strip():
        return ": it is empty"
    if error.pos >= len(text.rstrip()) or error.msg.startswith("Unterminated string"):
        return f": it ends in the middle (line {text.rstrip().count(chr(10)) + 1}), as when a run was stopped"
    return f": {error}"


def load_json(path):
    text = ""
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
        data = json.loads(text)
    except OSError as e:
        raise InputError(f"cannot read {path}: {e.strerror}") from e
    except (ValueError, RecursionError) as e:
        raise InputError(f"{path} is not JSON{why_not(e, text)}") from e
    entries = data.get("benchmarks") if isinstance(data, dict) else None
    if not isinstance(entries, list) or not isinstance(data.get("context"), dict) or \
            not all(isinstance(b, dict) and isinstance(b.get("name"), str)
                    and isinstance(b.get("run_name") or "", str) for b in entries):
        raise InputError(f"{path} is not Google Benchmark's JSON (an object with a context and a list of named "
                         "benchmarks; demi_bench --benchmark_out=FILE --benchmark_out_format=json writes it)")
    if not entries:
        raise InputError(f"{path} holds no benchmarks")
    return data


def microseconds(entry, path):
    """median_us where the program gives one, else real_time, which is a mean."""
    us = number(entry.get("median_us"))
    if us is None:
        try:
            us = float(entry["real_time"]) * TO_US[entry.get("time_unit", "ns")]
        except (KeyError, TypeError, ValueError, OverflowError):
            raise InputError(f"{path}: benchmark {entry['name']} has no real_time in ns, us, ms or s") from None
    if us != 0 and not is_time_or_rate(us):
        raise InputError(f"{path}: benchmark {entry['name']} took {us:g} us, which is no time")
    return us


def number(value):
    """A finite one that a float can hold; None for anything else."""
    try:
        return float(value) if isinstance(value, (int, float)) and math.isfinite(value) else None
    except OverflowError:
        return None


def result_of(name, entries, path):
    """One result from all entries of a name: iterations first, an aggregate's median or mean where there are none."""
    failed = next((e for e in entries if e.get("error_occurred") or e.get("skipped")), None)
    op, dtype, shape, cache = split_name(name)
    place = dict(op=op, dtype=dtype, shape=shape, cache=cache)
    if failed:
        why = failed.get("error_message") or failed.get("skip_message") or "no reason given"
        return Result(name, math.nan, 0, {}, error=str(why), **place)
    runs = [e for e in entries if e.get("run_type", "iteration") == "iteration"]
    aggregates = {str(e.get("aggregate_name")): e for e in entries if e.get("run_type") == "aggregate"}
    shown = runs or [e for kind, e in aggregates.items() if kind == "median"] or \
        [e for kind, e in aggregates.items() if kind == "mean"]
    if not shown:
        raise InputError(f"{path}: benchmark {name} has neither runs nor a mean or median of them")
    times = [microseconds(e, path) for e in shown]
    spread = statistics.median(number(e.get("spread_percent")) or 0.0 for e in shown)
    if not runs and "cv" in aggregates:  # of repetitions; p90 - p10 of a normal distribution is 2.56 deviations
        spread = max(spread, 256 * (number(aggregates["cv"].get("real_time")) or 0.0))
    counters = {}
    for counter in COUNTERS:
        values = [v for e in shown if (v := number(e.get(counter))) is not None]
        if values:
            counters[counter] = max(values) if counter == "relative_error" else statistics.median(values)
    label = next((str(e["label"]) for e in shown if e.get("label")), "")
    return Result(name, statistics.median(times), spread, counters, label, times if runs else [], **place)


def read(path, pattern=None):
    """The run in a file; `pattern`: a compiled regular expression, results whose name it does not find are left out."""
    data = load_json(path)
    grouped = {}
    for entry in data["benchmarks"]:
        grouped.setdefault(stripped(entry.get("run_name") or entry["name"]), []).append(entry)
    results = {name: result_of(name, entries, path) for name, entries in grouped.items()
               if pattern is None or pattern.search(name)}
    if not results:
        raise InputError(f"{path}: none of its {len(grouped)} benchmarks matches the filter {pattern.pattern}")
    return Run(path, data["context"], results)
