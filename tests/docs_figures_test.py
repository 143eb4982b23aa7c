"""The H200's figures in README.md and docs/ are those of the result files in docs/performance/.

    python3 tests/docs_figures_test.py
"""
import json
import pathlib
import re
import subprocess
import sys
import unittest
from decimal import ROUND_HALF_UP, Decimal

ROOT = pathlib.Path(__file__).resolve().parent.parent
RESULTS = ROOT / "docs" / "performance"
NAMES = {"fp32": "FP32", "tf32": "TF32", "fp16": "FP16", "bf16": "BF16"}


def page(name):
    return (ROOT / name).read_text(encoding="utf-8")


def results(name):
    data = json.loads((RESULTS / name).read_text(encoding="utf-8"))
    return {b["name"].removesuffix("/manual_time"): b for b in data["benchmarks"]}


def rounded(value, places=0):
    return f"{Decimal(str(value)).quantize(Decimal(1).scaleb(-places), ROUND_HALF_UP):,}"


def three(value):
    """Three significant digits; whole numbers from 100 on."""
    return rounded(value, 0 if value >= 99.95 else 1 if value >= 9.995 else 2)


def row(*cells):
    return "| " + " | ".join(cells).strip().replace("|  |", "| |") + " |"


class Figures(unittest.TestCase):
    def stands(self, expected, text):
        self.assertTrue(expected in text, f"not there: {expected}")


class OpByOp(Figures):
    def test_the_page_is_what_the_report_prints(self):
        files = [str(RESULTS / "h200.json"), "--peer", str(RESULTS / "h200_torch.json")]
        done = subprocess.run([sys.executable, "-B", ROOT / "bench" / "report", *files], capture_output=True,
                              encoding="utf-8", check=True, env={"PYTHONIOENCODING": "utf-8"})
        self.assertTrue(page("docs/performance/h200.md").endswith("\n\n" + done.stdout))

    def test_rows_of_the_summary(self):
        text, demi, torch = page("docs/performance.md"), results("h200.json"), results("h200_torch.json")
        rows = re.findall(r"^\| `(\w+)` \| (\w+) \| (.*) \|$", text, re.MULTILINE)
        self.assertGreaterEqual(len(rows), 10)
        for op, shape, cells in rows:
            mine = {d: demi.get(f"{op}/{d}/{shape}/cold") for d in NAMES}
            times = [f"{three(b['median_us'])} ({three(torch[f'{op}/{d}/{shape}/cold']['median_us'])})" if b else ""
                     for d, b in mine.items()]
            ratios = [rounded(mine[d]["median_us"] / mine["fp16"]["median_us"], 2) if mine[d] else ""
                      for d in ("fp32", "tf32")]
            expected = [*times, *ratios, rounded(mine["fp16"]["ceiling_percent"]) + " %"]
            self.assertEqual([c.strip() for c in cells.split("|")], expected, f"{op} {shape}")

    def test_ladders(self):
        text, ladder = page("docs/kernel_ladders.md"), results("h200_ladders.json")
        labels = {"cublaslt": "cuBLASLt", "sum_library": "the library's sum",
                  "batch_norm_library": "the library's batch norm"}
        for name, b in ladder.items():
            op, dtype, *_ = name.split("/")
            kind, step = re.fullmatch(r"ladder_(matmul|sum|batch_norm)_(\w+)", op).groups()
            label = labels.get(step, labels.get(f"{kind}_{step}", step))
            share = rounded(b["ceiling_percent"], 1) + " %"
            if kind == "matmul":
                expected = [three(b["median_us"] / 1000), three(b["TFLOP/s"]) if b["TFLOP/s"] > 10
                            else rounded(b["TFLOP/s"], 1), share]
            elif kind == "sum":
                other = ladder[name.replace("fp16", "fp32")]
                expected = [three(b["median_us"]), share, three(other["median_us"]),
                            rounded(other["ceiling_percent"], 1) + " %"]
            else:
                expected = [three(b["median_us"]), share]
            if dtype == "fp16":
                self.stands(row(label, *expected), text)


class Trainings(Figures):
    def setUp(self):
        self.data = json.loads((RESULTS / "h200_training.json").read_text(encoding="utf-8"))

    def step(self, precision, batch=256, **which):
        found = [s for s in self.data["steps"] if (s["precision"], s["batch"]) == (precision, batch)
                 and all(s.get(k) == v for k, v in which.items())]
        return found[0] if found else None

    def columns(self, precision, batch=256):
        peer = {"program": "PyTorch"}
        eager = [self.step(precision, batch, mode=m, **peer) for m in ("eager", "eager, channels-last")]
        return [self.step(precision, batch, graph=False), self.step(precision, batch, graph=True),
                eager[0] or eager[1], self.step(precision, batch, mode="channels-last, compiled + CUDA graphs", **peer)]

    def test_one_step(self):
        readme, performance = page("README.md"), page("docs/performance.md")
        for precision, name in NAMES.items():
            cells = [f"{rounded(s['ms'], 2)} ms" if s else "" for s in self.columns(precision)]
            self.stands(row(name, *cells), readme)
        for batch, precision in [(256, p) for p in NAMES] + [(1024, "fp16")]:
            start = f"| {batch} | {NAMES[precision]} |"
            found = next(line for line in performance.splitlines() if line.startswith(start))
            for s in filter(None, self.columns(precision, batch)):
                self.assertRegex(found, rf"\| {rounded(s['ms'], 3)} \({rounded(s['images_per_second'])}\b")

    def test_to_the_end(self):
        readme, performance = page("README.md"), page("docs/performance.md")
        runs = {}
        for t in self.data["trainings"]:
            runs.setdefault((t["precision"], t["epochs"]), []).append(t["test_accuracy_percent"])
        for (precision, epochs), accuracies in runs.items():
            each = [f"{rounded(a, 2)} %" for a in accuracies]
            mean = rounded(sum(map(Decimal, map(str, accuracies))) / len(accuracies), 2)
            start = f"| {NAMES[precision]} | {epochs} | "
            self.stands(start + (" | ".join([*each, f"{mean} %"]) if len(each) > 1 else each[0]) + " | ", readme)
            seeds = ", ".join(str(i) for i in range(len(each)))
            both = ", ".join(each) + (f" (mean {mean})" if len(each) > 1 else "")
            self.stands(f"{start}{seeds} | {both} | ", performance)
        self.stands(f"{self.data['pytorch_training']['test_accuracy_percent']} %", readme)

    def test_tables_that_the_program_printed(self):
        readme = page("README.md")
        self.stands("\n".join(self.data["compare"]["printed"]), readme)
        cells = [[c.strip() for c in line.strip("|").split("|")][1:3] for line in self.data["plain"]["printed"]]
        (a, b), (m, n), (x, y) = cells[2], cells[4], cells[5]
        self.stands(row("demi, one H200", f"{a} / {b}", f"{m.split()[0]} / {n}", f"{x.split()[0]} / {y}"), readme)

    def test_simple_cnn(self):
        performance = " ".join(page("docs/performance.md").split())
        for precision in ("fp32", "fp16"):
            values = [rounded(r["test_accuracy_percent"], 2) for r in self.data["simple_cnn"]
                      if r["precision"] == precision]
            self.stands(f"{', '.join(values)} % in {NAMES[precision]}", performance)


if __name__ == "__main__":
    unittest.main()
