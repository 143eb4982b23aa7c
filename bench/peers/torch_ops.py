#!/usr/bin/env python3
"""Times PyTorch's counterparts of the ops that demi_bench measured, under the same names and by the same method.

    python3 torch_ops.py --names-from demi.json --out torch.json [--device auto|cpu|cuda] [--filter REGEX] [--compile]

On CUDA n calls over rotating sets of operands are captured in one graph and replayed between two events, so times are
the device's, without Python's. "cold" names rotate over sets that together exceed three times the L2 cache, "warm" ones
use one set. On the CPU calls are timed in batches by the host's clock. Names that it cannot do are listed.
"""
import argparse
import json
import pathlib
import platform
import re
import statistics
import sys
import time
import warnings

try:
    import torch
except ImportError as e:
    sys.exit(f"torch_ops: PyTorch is not here for {sys.executable}: {e}")

sys.dont_write_bytecode = True  # leaves no __pycache__ in the source tree
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from peers.torch_cases import LeftOut, case_of  # noqa: E402
from report_lib import results  # noqa: E402

REPLAYS = 40
TARGET_US = 2000  # of one replay
MAX_SETS, MAX_CALLS = 4096, 4096


def percentile(ordered, share):
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def summary(samples):
    """median and (p90 - p10) / median in per cent of microseconds a call."""
    ordered = sorted(samples)
    median = statistics.median(ordered)
    return median, 100 * (percentile(ordered, 0.9) - percentile(ordered, 0.1)) / median


def storages(value):
    """Memory behind operands and results, counted once: address -> bytes. A result may be an operand."""
    if isinstance(value, torch.Tensor):
        return {value.untyped_storage().data_ptr(): value.untyped_storage().nbytes()}
    found = {}
    for part in value if isinstance(value, (list, tuple)) else ():
        found.update(storages(part))
    return found


def sets_for(cache, footprint, device):
    """How many sets of operands to rotate over, and a remark where memory or count keep that below 5 times the L2."""
    if cache != "cold":
        return 1, ""
    properties = torch.cuda.get_device_properties(device)
    # 5 times, so that what a call touches is over 3: backward kernels are handed operands that they do not read.
    wanted = max(2, -(-5 * properties.L2_cache_size // max(1, footprint)) + 1)
    fits = max(1, int(0.7 * torch.cuda.mem_get_info(device)[0] / max(1, footprint)))
    sets = min(wanted, fits, MAX_SETS)
    return sets, "" if sets == wanted else f"only {sets} sets, {sets * footprint / 2**20:.0f} MiB"


def hold(microseconds):
    """Keeps the stream busy, so that what is queued meanwhile starts without a gap; 2 cycles a nanosecond at most."""
    torch.cuda._sleep(int(microseconds * 2000))


def time_cuda(case, call, cache, device):
    operands = [case.make()]
    side = torch.cuda.Stream(device)
    side.wait_stream(torch.cuda.current_stream(device))
    start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    with torch.cuda.stream(side):
        for _ in range(3):  # cuDNN's search and torch.compile happen here
            made = call(operands[0])
        footprint = sum(storages([operands[0], made]).values())
        del made
        sets, remark = sets_for(cache, footprint, device)
        operands += [case.make() for _ in range(sets - 1)]
        trial = min(10, max(2, sets))
        hold(2000)
        start.record()
        for i in range(trial):
            call(operands[i % sets])
        stop.record()
    side.synchronize()
    once = max(0.5, start.elapsed_time(stop) * 1000 / trial)
    calls = min(MAX_CALLS, max(1, round(TARGET_US / once)))
    calls = max(sets, -(-calls // sets) * sets)  # whole rounds: a replay meets the last one's data as late as any other

    graph, outputs = torch.cuda.CUDAGraph(), [None] * sets
    with torch.cuda.graph(graph, stream=side):
        for i in range(calls):
            outputs[i % sets] = None  # its memory goes to the same set's next output: outputs rotate as operands do
            outputs[i % sets] = call(operands[i % sets])
    samples, spent = [], 0.0
    for i in range(3 + REPLAYS):  # the first three: clocks rise, instructions are cached
        hold(50 + calls // 2)
        start.record()
        graph.replay()
        stop.record()
        stop.synchronize()
        if i >= 3:
            samples.append(start.elapsed_time(stop) * 1000 / calls)
            spent += samples[-1] * calls
        if len(samples) >= 10 and spent > 1e6:
            break
    return *summary(samples), calls * len(samples), remark


def time_cpu(case, call):
    operands = case.make()
    call(operands)
    began = time.perf_counter()
    call(operands)
    once = max(1e-7, time.perf_counter() - began)
    calls = max(1, int(2e-3 / once))
    samples = []
    deadline = time.perf_counter() + 0.5
    while len(samples) < REPLAYS and (len(samples) < 5 or time.perf_counter() < deadline):
        began = time.perf_counter()
        for _ in range(calls):
            call(operands)
        samples.append((time.perf_counter() - began) * 1e6 / calls)
    return *summary(samples), calls * len(samples), ""


def alive(device):
    """False once a kernel has failed for good: nothing can run in this process after that."""
    try:
        torch.cuda.synchronize(device)
        torch.cuda.empty_cache()
        return True
    except RuntimeError:
        return False


def measure(name, options, device):
    """The entry of a name, as Google Benchmark would write it."""
    op, dtype, shape, cache = results.split_name(name)
    if not op:
        raise LeftOut("not <op>/<dtype>/<shape>/<cold|warm>")
    if device.type == "cpu" and (dtype == "tf32" or cache == "cold"):
        raise LeftOut(f"no {'TF32' if dtype == 'tf32' else 'cold cache'} on the CPU")
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = dtype == "tf32"
    case = case_of(op, dtype, shape, device)
    call, label = case.call, case.label
    if options.compile and case.sequence:
        torch._dynamo.reset()
        call, label = torch.compile(case.call, dynamic=False), f"torch.compile of {label}"
    timed = time_cuda(case, call, cache, device) if device.type == "cuda" else time_cpu(case, call)
    median, spread, iterations, remark = timed
    return {"name": name, "run_name": name, "run_type": "iteration", "iterations": iterations, "real_time": median,
            "cpu_time": median, "time_unit": "us", "median_us": median, "spread_percent": spread,
            "label": " | ".join(filter(None, (label, remark)))}


def cpu_name():
    try:
        found = re.search(r"^model name\s*: (.*)$", pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8"), re.M)
    except OSError:
        found = None
    return found[1] if found else platform.processor() or platform.machine()


def context_of(device, options):
    cuda = device.type == "cuda"
    cudnn = torch.backends.cudnn.version() if cuda else None
    return {"card": torch.cuda.get_device_name(device) if cuda else cpu_name(), "torch": torch.__version__,
            "cuda": torch.version.cuda if cuda else "", "cudnn": str(cudnn or ""),
            "date": time.strftime("%Y-%m-%dT%H:%M:%S%z"), "command": " ".join(sys.argv),
            "compile": str(options.compile).lower()}


def arguments():
    parser = results.Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--names-from", required=True, metavar="demi.json", help="measure the names in this file")
    parser.add_argument("--out", required=True, metavar="FILE", help="write the JSON here")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--filter", metavar="REGEX", help="only names that this finds")
    parser.add_argument("--compile", action="store_true", help="sequences of calls go through torch.compile")
    return parser.parse_args()


def main():
    options = arguments()
    if options.device == "cuda" and not torch.cuda.is_available():
        raise results.InputError("--device cuda: PyTorch finds no GPU here")
    cuda = options.device == "cuda" or (options.device == "auto" and torch.cuda.is_available())
    device = torch.device("cuda", torch.cuda.current_device()) if cuda else torch.device("cpu")
    try:
        pattern = re.compile(options.filter) if options.filter is not None else None
    except re.error as e:
        raise results.InputError(f"--filter {options.filter} is no regular expression: {e}") from e
    names = list(results.read(options.names_from, pattern).results)
    try:
        pathlib.Path(options.out).open("a", encoding="utf-8").close()  # now, and not after an hour of measuring
    except OSError as e:
        raise results.InputError(f"cannot write {options.out}: {e.strerror}") from e
    torch.manual_seed(0)
    torch.backends.cudnn.benchmark = True
    if not cuda:
        print(f"no GPU: measuring on the CPU, {cpu_name()}")

    entries, left_out = [], {}
    with torch.no_grad():
        for name in names:
            try:
                entries.append(measure(name, options, device))
                print(f"{name:<64} {entries[-1]['median_us']:>11.2f} us  +-{entries[-1]['spread_percent']:5.1f} %  "
                      f"{entries[-1]['label']}", flush=True)
            except LeftOut as e:
                left_out[name] = str(e)
            except (RuntimeError, NotImplementedError) as e:  # out of memory, a dtype that an op does not take
                left_out[name] = f"{type(e).__name__}: {(str(e).strip() or 'no text').splitlines()[0]}"
            if cuda and not alive(device):
                left_out.update({n: f"the GPU failed at {name}" for n in names[names.index(name) + 1:]})
                break
    for why in dict.fromkeys(left_out.values()):
        print(f"left out, {why}: {', '.join(n for n, w in left_out.items() if w == why)}")
    if not entries:
        raise results.InputError(f"none of the {len(names)} names could be measured")
    data = {"context": {**context_of(device, options), "left_out": left_out}, "benchmarks": entries}
    pathlib.Path(options.out).write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    print(f"{len(entries)} of {len(names)} names measured, written to {options.out}")


if __name__ == "__main__":
    warnings.filterwarnings("ignore", message=".*TF32.*|.*allow_tf32.*")
    try:
        main()
    except results.InputError as e:
        print(f"torch_ops: {e}", file=sys.stderr)
        sys.exit(2)
