"""Makes what demi_bench writes on a card, from a simple model of one: time = max(bytes, operations) / a share of its
ceiling, plus noise. For the tests of bench/report, and to look at its page:

    python3 tests/bench_report_results.py FOLDER      writes demi.json and torch.json there
"""
import json
import pathlib
import random
import sys

COPY = 4280e9
PEAKS = {"fp32": 51e12, "tf32": 356e12, "fp16": 745e12, "bf16": 687e12}
SIZE = {"fp32": 4, "tf32": 4, "fp16": 2, "bf16": 2}
IMAGES = ("256x32x32x64", "256x16x16x128", "256x8x8x256")
CONVOLUTIONS = ((256, 32, 32, 64, 64, 3, 1), (256, 32, 32, 64, 128, 3, 2), (256, 16, 16, 128, 128, 3, 1),
                (256, 4, 4, 512, 512, 3, 1), (256, 32, 32, 64, 128, 1, 2))


def numel(shape):
    n = 1
    for extent in shape.split("x"):
        n *= int(extent)
    return n


def cases():
    """op, dtype, shape, bytes, flops, share of the ceiling."""
    passes = {"add": (3, 1, 0.93), "axpy": (3, 2, 0.92), "relu": (2, 1, 0.93), "relu_backward": (3, 1, 0.92),
              "batch_norm": (3, 8, 0.88), "batch_norm_add_relu": (4, 10, 0.86),
              "batch_norm_relu_backward": (6, 12, 0.84),
              "max_pool": (1.75, 1, 0.7), "avg_pool": (1.25, 1, 0.8), "sum": (1, 1, 0.78), "sum_rows": (1, 1, 0.81),
              "amax": (1, 1, 0.79), "copy": (2, 0, 0.97)}
    for op, (tensors, flops, share) in passes.items():
        for shape in ("16777216",) if op in ("add", "axpy", "copy", "sum", "amax") else IMAGES:
            for dtype in ("fp32", "fp16", "bf16"):
                n = numel(shape)
                yield op, dtype, shape, tensors * n * SIZE[dtype], flops * n, share
    for op, words, halves, flops in (("sgd", 5, 2, 6), ("adam", 7, 2, 14)):
        for dtype in ("fp32", "fp16", "bf16"):
            per = 4 * words if dtype == "fp32" else 4 * (words - 1) + 2 * halves
            yield op, dtype, "11173962", per * 11173962, flops * 11173962, 0.88
    for dtype in ("fp32", "fp16", "bf16"):
        yield "cross_entropy", dtype, "256x10", 256 * 10 * SIZE[dtype] + 2048, 256 * 10 * 4, 0.0005
    for dtype, peak in PEAKS.items():
        yield "matmul", dtype, "8192x8192x8192", 3 * 8192**2 * SIZE[dtype], 2 * 8192**3, 0.96
        yield "linear", dtype, "256x10x512", (256 * 512 + 10 * 512 + 2560) * SIZE[dtype], 2 * 256 * 10 * 512, 0.01
        for n, h, w, c, k, r, s in CONVOLUTIONS:
            p, q = h // s, w // s
            moved = (n * h * w * c + n * p * q * k + k * r * r * c) * SIZE[dtype]
            for op, share in (("conv_fprop", 0.62), ("conv_dgrad", 0.6), ("conv_wgrad", 0.5), ("conv_bn_relu", 0.41)):
                yield op, dtype, f"{n}x{h}x{w}x{c}_k{k}_r{r}_s{s}", moved, 2 * n * p * q * k * r * r * c, share
    for step, share in (("1_naive", 0.004), ("2_tiled", 0.011), ("3_vectorized", 0.05), ("4_wmma", 0.35),
                        ("5_mma", 0.7), ("6_wgmma", 0.9), ("cublaslt", 0.96)):
        yield f"ladder_matmul_{step}", "fp16", "8192x8192x8192", 6 * 8192**2, 2 * 8192**3, share


def entry(name, op, dtype, moved, flops, share, rng, noise, factor, repetition):
    floor = max(moved / COPY, flops / PEAKS[dtype]) * 1e6
    truth = (floor / share if floor > 0 else 2.0) + 1.4
    us = truth * factor * rng.gauss(1, noise)
    label = "cuDNN engine 58" if op.startswith("conv") else "cuBLASLt 6 tile 128x256" if op == "matmul" else ""
    if op == "linear" and dtype == "fp16":
        label = "cuBLASLt 71 | no tensor cores: 10 columns are not a multiple of 8"
    counters = {"median_us": us, "spread_percent": abs(rng.gauss(200 * noise, 40 * noise)), "bytes": moved,
                "flops": flops, "GB/s": moved / us / 1e3, "TFLOP/s": flops / us / 1e6, "floor_us": floor,
                "ceiling_percent": 100 * floor / us, "host_us": rng.gauss(4, 0.3),
                "relative_error": {"fp32": 2e-7, "tf32": 3e-4, "fp16": 2.6e-4, "bf16": 2e-3}[dtype]}
    return {"name": name + "/manual_time", "run_name": name + "/manual_time", "run_type": "iteration",
            "repetitions": 1, "repetition_index": repetition, "threads": 1, "iterations": 4000,
            "real_time": us * 1000 * rng.gauss(1.003, 0.001), "cpu_time": us * 1010, "time_unit": "ns", "label": label,
            **counters}


def context():
    return {"date": "2026-01-01T10:00:00+00:00", "host_name": "here", "executable": "build/release/bin/demi_bench",
            "num_cpus": 16, "card": "NVIDIA H200", "driver": "580.159", "cuda": "13.0", "cudnn": "9.19",
            "demi_commit": "0123abc", "command": "demi_bench --set=default --benchmark_out=demi.json",
            "l2_bytes": "62914560", "ceiling_copy_GBps": "4280", "ceiling_fp32_TFLOPs": "51",
            "ceiling_tf32_TFLOPs": "356", "ceiling_fp16_TFLOPs": "745", "ceiling_bf16_TFLOPs": "687",
            "sm_clock_MHz": "1980", "memory_clock_MHz": "3201"}


def run(seed=1, noise=0.01, slower=None, drift=1.0, repetitions=1, wander=0.0):
    """slower: {name: factor}, planted; drift: a factor on every time; wander: of a benchmark in this run, as noise."""
    rng, entries = random.Random(seed), []
    for op, dtype, shape, moved, flops, share in cases():
        caches = ("cold", "warm") if 0 < moved < 50e6 and not op.startswith("ladder") else ("cold",)
        for cache in caches:
            name = f"{op}/{dtype}/{shape}/{cache}"
            boost = 0.6 if cache == "warm" else 1.0
            factor = drift * boost * (slower or {}).get(name, 1.0)
            factor *= rng.gauss(1, wander) if wander else 1.0
            entries += [entry(name, op, dtype, moved, flops, share, rng, noise, factor, i) for i in range(repetitions)]
    return {"context": context(), "benchmarks": entries}


def peer(seed=2, faster=("adam/fp16/11173962/cold",)):
    """PyTorch's file for the same names: a little slower than demi but for those in `faster`; ladders are left out."""
    rng, entries = random.Random(seed), []
    for b in run(seed=1)["benchmarks"]:
        name = b["name"].removesuffix("/manual_time")
        if not name.startswith("ladder"):
            us = b["median_us"] * (0.8 if name in faster else rng.uniform(1.03, 1.9 if "bn_relu" in name else 1.25))
            entries.append({"name": name, "run_name": name, "run_type": "iteration", "iterations": 100, "real_time": us,
                            "cpu_time": us, "time_unit": "us", "median_us": us, "spread_percent": 1.0, "label": ""})
    return {"context": {"card": "NVIDIA H200", "torch": "2.11.0", "cuda": "13.0", "cudnn": "9.19"},
            "benchmarks": entries}


def with_aggregates(data):
    """What --benchmark_repetitions adds: mean, median, stddev and cv of each benchmark."""
    groups = {}
    for b in data["benchmarks"]:
        groups.setdefault(b["run_name"], []).append(b)
    for name, runs in groups.items():
        times = sorted(b["real_time"] for b in runs)
        statistics = {"mean": sum(times) / len(times), "median": times[len(times) // 2], "stddev": 1.0, "cv": 0.01}
        for kind, value in statistics.items():
            data["benchmarks"].append({**runs[0], "name": f"{name}_{kind}", "run_type": "aggregate",
                                       "aggregate_name": kind, "real_time": value,
                                       "median_us": value / 1000 if kind in ("mean", "median") else value})
    return data


if __name__ == "__main__":
    folder = pathlib.Path(sys.argv[1])
    (folder / "demi.json").write_text(json.dumps(run(), indent=1))
    (folder / "torch.json").write_text(json.dumps(peer(), indent=1))
