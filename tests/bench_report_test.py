"""bench/report on made-up results: tables, the page, and what bad input is answered with.

    python3 tests/bench_report_test.py
"""
import contextlib
import copy
import html.parser
import itertools
import math
import re
import subprocess
import sys
import unittest

import bench_report_results as made
from bench_report_frame import REPORT, ReportTest, simple

sys.dont_write_bytecode = True
sys.path.insert(0, str(REPORT.parent))
from report_lib import against, compare, page, results, table  # noqa: E402


def cells(markdown, *start):
    """The cells of the first row of a Markdown table that begins with the given ones."""
    rows = [[c.strip() for c in line.strip("|").split(" | ")] for line in markdown.splitlines() if line.startswith("|")]
    return next(row for row in rows if row[:len(start)] == list(start))


class Tables(ReportTest):
    def test_every_name_has_its_time_in_the_row_of_its_op_and_the_column_of_its_dtype(self):
        data = made.run()
        text = self.succeeds(self.file("demi.json", data))
        head = cells(text, "op")
        for b in data["benchmarks"]:
            op, dtype, shape, cache, _ = b["name"].split("/")
            shown = cells(text, op, shape, cache)[head.index(f"{dtype.upper()}, µs")]
            delta = 0.5 if b["median_us"] > 999 else 0.006 * b["median_us"]  # of three significant digits
            self.assertAlmostEqual(float(shown), b["median_us"], delta=delta)

    def test_figures_of_one_op(self):
        data = {"context": made.context(), "benchmarks": [
            simple("relu/fp32/1000/cold/manual_time", 8, bytes=8000, ceiling_percent=80.0),
            simple("relu/tf32/1000/cold/manual_time", 6),
            simple("relu/fp16/1000/cold/manual_time", 3, median_us=4.0, bytes=6000, ceiling_percent=76.4, host_us=2.5,
                   relative_error=2.5e-4, label="engine 7 | no tensor cores: odd channels")]}
        row = cells(self.succeeds(self.file("demi.json", data)), "relu")
        self.assertEqual(row, ["relu", "1000", "cold", "8.00", "6.00", "4.00", "2.00×", "1.50×", "25 %",
                               "80 / – / 76 %", "2.5e-04", "2.5", "FP16: engine 7 \\| no tensor cores: odd channels"])

    def test_the_host_is_no_figure_of_its_own_on_the_cpu(self):
        data = made.run()
        self.assertIn("host, µs", self.succeeds(self.file("gpu.json", data)))
        data["context"] = {"card": "some CPU"}
        self.assertNotIn("host", self.succeeds(self.file("cpu.json", data)))

    def test_repetitions_and_aggregates_make_one_result(self):
        entries = [simple("relu/fp16/9/warm/repeats:3/manual_time", us) for us in (5, 7, 6)]
        data = made.with_aggregates({"context": {}, "benchmarks": entries})
        text = self.succeeds(self.file("both.json", data))
        self.assertEqual(cells(text, "relu", "9", "warm")[3], "6.00")
        self.assertEqual(text.count("| relu |"), 1)
        only = {"context": {}, "benchmarks": [b for b in data["benchmarks"] if b["run_type"] == "aggregate"]}
        self.assertEqual(cells(self.succeeds(self.file("only.json", only)), "relu", "9", "warm")[3], "6.00")

    def test_a_failed_benchmark_is_named_with_its_reason(self):
        data = made.run()
        data["benchmarks"].append(simple("add/fp16/77/cold", 0, error_occurred=True, error_message="error 0.3 > 0.001"))
        row = cells(self.succeeds(self.file("demi.json", data)), "add", "77")
        self.assertIn("failed", row)
        self.assertEqual(row[-1], "FP16 failed: error 0.3 > 0.001")

    def test_filter(self):
        text = self.succeeds(self.file("demi.json", made.run()), "--filter", "^relu/fp(16|32)")
        self.assertEqual({line.split(" | ")[0] for line in text.splitlines() if line.startswith("| ")},
                         {"| op", "| :--", "| relu"})
        self.assertNotIn("BF16, µs", text)

    def test_peer_column_and_what_is_slower_than_it(self):
        data, peer = made.run(), made.peer()
        demi, torch = self.file("demi.json", data), self.file("torch.json", peer)
        text = self.succeeds(demi, "--peer", torch)
        table = text[text.index("## Against PyTorch"):]
        head, row = cells(table, "op", "shape"), cells(table, "matmul", "8192x8192x8192", "cold")
        times = {b["name"].removesuffix("/manual_time"): b["median_us"] for b in data["benchmarks"]}
        peers = {b["name"]: b["median_us"] for b in peer["benchmarks"]}
        name = "matmul/fp16/8192x8192x8192/cold"
        self.assertAlmostEqual(float(row[head.index("PyTorch FP16, µs")]), peers[name], delta=1)
        self.assertEqual(row[head.index("demi over PyTorch, FP16")], f"{peers[name] / times[name]:.2f}×")
        self.assertIn("0.80× FP16 11173962 cold", cells(table, "adam", "demi", "1 of 3")[-1])
        self.assertEqual(re.findall(r"▼ ([\d.]+)×", table), ["0.80"])
        self.assertIn("Nowhere slower: ", table)
        self.assertNotIn("ladder", table)
        none = self.succeeds(demi, "--peer", self.file("slow.json", made.peer(faster=())))
        self.assertRegex(none, r"demi's own kernels are not slower in any of \d+ benchmarks")
        self.assertNotIn("the worst first", none)

    def test_own_kernels_and_those_of_libraries_are_told_apart(self):
        faster = ("conv_fprop/fp16/256x4x4x512_k512_r3_s1/cold", "adam/fp16/11173962/cold",
                  "relu/fp32/256x8x8x256/warm")
        peer = self.file("torch.json", made.peer(faster=faster))
        text = self.succeeds(self.file("demi.json", made.run()), "--peer", peer)
        self.assertRegex(text, r"own kernels are slower in 2 of \d+ benchmarks")
        self.assertRegex(text, r"cuDNN or cuBLASLt, as PyTorch does: slower in 1 of \d+ benchmarks")
        table = text[text.index("| op | kernels of |"):text.index("Nowhere slower")]
        self.assertEqual(re.findall(r"^\| (\w+) \| (demi|cuDNN) \|", table, re.M),
                         [("relu", "demi"), ("adam", "demi"), ("conv_fprop", "cuDNN")])

    def test_what_the_peer_left_out_is_named_with_the_reason(self):
        peer = made.peer()
        peer["context"].update(cudnn="91900", left_out={f"augment/{d}/9/{c}": "no counterpart" for d in ("fp32", "fp16")
                                                        for c in ("cold", "warm")})
        text = self.succeeds(self.file("demi.json", made.run()), "--peer", self.file("torch.json", peer))
        self.assertIn("Not in PyTorch's file: augment in FP32, FP16 (no counterpart).", text)
        self.assertIn("cuDNN 9.19.0 on NVIDIA H200", text)


class Page(ReportTest):
    def page(self, data=None, peer=None):
        out = self.folder / "page.html"
        peers = ["--peer", self.file("torch.json", peer)] if peer else []
        self.assertEqual(self.succeeds(self.file("demi.json", data or made.run()), "--html", out, *peers), "")
        return out.read_text(encoding="utf-8")

    def test_it_needs_nothing_else(self):
        text = self.page(peer=made.peer())
        self.assertNotRegex(text.replace("http://www.w3.org/2000/svg", ""), r"https?:|//[a-z]")
        self.assertNotRegex(text, r"<(link|script|img|iframe|object|embed)|@import|url\(|\ssrc=|\shref=")
        self.assertIn("prefers-color-scheme: dark", text)

    def test_it_is_well_formed_and_escapes_what_it_shows(self):
        data = made.run()
        data["context"]["command"] = "demi_bench --benchmark_filter='<b>&x'"
        data["benchmarks"][0]["label"] = "<script>alert(1)</script>"
        text = self.page(data)
        self.assertIn("&lt;script&gt;", text)
        self.assertNotIn("<script", text)
        open_tags = []

        class Balance(html.parser.HTMLParser):
            def handle_starttag(self, tag, attrs):
                if tag != "meta":
                    open_tags.append(tag)

            def handle_endtag(self, tag):
                assert open_tags and open_tags.pop() == tag, f"</{tag}> closes nothing"

        Balance().feed(text)
        self.assertEqual(open_tags, [])

    def test_header_names_card_versions_commit_command_and_ceilings(self):
        text = self.page()
        for value in ("NVIDIA H200", "580.159", "13.0", "9.19", "0123abc", "--set=default", "copy 4280 GB/s",
                      "FP16 745 TFLOP/s"):
            self.assertIn(value, text)

    def test_every_benchmark_is_in_the_table_and_the_plots(self):
        data = made.run()
        text = self.page(data)
        roofline = text[text.index("<h2>Roofline"):text.index("<h2>FP16 against FP32")]
        table = text[text.index("<h2>All figures"):]
        shares = text[text.index("<h2>Share of the ceiling"):text.index("<h2>All figures")]
        for b in data["benchmarks"]:
            name = b["name"].removesuffix("/manual_time")
            op, _, shape, cache = name.split("/")
            self.assertIn(f"<td>{op}</td><td>{shape}</td><td>{cache}</td>", table)
            self.assertEqual(f"<title>{name}\n" in roofline, b["flops"] > 0, name)
            if cache == "cold":
                self.assertIn(f"<title>{name}\n", shares)

    def test_a_dtype_that_a_shape_has_only_warm_is_in_the_bars(self):
        names = [f"linear/{end}" for end in ("fp32/9x9x9/cold", "fp32/9x9x9/warm", "fp16/9x9x9/warm")]
        data = {"context": {}, "benchmarks": [simple(n, 4, ceiling_percent=50) for n in names]}
        peer = {"context": {}, "benchmarks": [simple(n, 3) for n in names]}
        text = self.page(data, peer)
        speed_up = text[text.index("<h2>FP16 against FP32"):text.index("<h2>Share")]
        self.assertIn("1.00×", speed_up)
        for part in (text[text.index("<h2>Share"):text.index("<h2>Against")], text[text.index("<h2>Against"):]):
            self.assertIn("<title>linear/fp16/9x9x9/warm\n", part)
        self.assertIn(">▼ 0.75×</text>", text)

    def test_a_point_on_the_roof_is_drawn_on_its_line(self):
        # 10 FLOP/B at the bandwidth's 42.8 TFLOP/s: on the memory roof, below FP16's peak.
        data = {"context": made.context(), "benchmarks": [
            simple("add/fp16/1000/cold", 1e6 * 4280 / 4280, bytes=4.28e12, flops=4.28e13),
            simple("matmul/fp16/8x8x8/cold", 1e6, bytes=1e9, flops=745e12)]}
        text = self.page(data)
        x1, y1, x2, y2 = map(float, re.search(r'x1="([\d.]+)" y1="([\d.]+)" x2="([\d.]+)" y2="([\d.]+)" class="roof"',
                                              text).groups())
        points = re.search(r'<polygon points="([^"]+)" class="dot fill-fp16"><title>add/', text)[1].split()
        x, y = (sum(float(p.split(",")[i]) for p in points) / len(points) for i in (0, 1))
        self.assertAlmostEqual(y, y1 + (x - x1) / (x2 - x1) * (y2 - y1), delta=0.5)
        peak = float(re.search(r'y1="([\d.]+)" x2="[\d.]+" y2="[\d.]+" class="roof line-fp16"', text)[1])
        points = re.search(r'<polygon points="([^"]+)" class="dot fill-fp16"><title>matmul/', text)[1].split()
        self.assertAlmostEqual(sum(float(p.split(",")[1]) for p in points) / len(points), peak, delta=0.5)

    def test_an_axis_of_less_than_three_decades_has_ticks_between_them(self):
        names = ("add/fp16/1/cold", "add/fp16/2/cold")
        data = {"context": {}, "benchmarks": [simple(n, us, bytes=1e6, flops=2e5) for n, us in zip(names, (1, 3))]}
        text = self.page(data)
        for label in ("0.1", "0.2", "0.5"):
            self.assertIn(f'class="tick">{label}<', text)

    def test_labels_of_the_roofline_do_not_overlap(self):
        text = self.page()
        roofline = text[text.index("<h2>Roofline"):text.index("<h2>FP16 against FP32")]
        found = re.findall(r'<text x="([\d.]+)" y="([\d.]+)" font-size="11" text-anchor="(start|end)" class="label">'
                           r"([^<]+)<", roofline)
        boxes = []
        for x, y, anchor, name in found:
            width = 6.5 * len(name)
            left = float(x) - (width if anchor == "end" else 0)
            boxes.append((left, float(y) - 9, left + width, float(y), name))
        self.assertGreater(len(boxes), 12)
        self.assertIn("matmul", {b[4] for b in boxes})
        for i, a in enumerate(boxes):
            for b in boxes[:i]:
                apart = a[2] <= b[0] or b[2] <= a[0] or a[3] <= b[1] or b[3] <= a[1]
                self.assertTrue(apart, f"{a} and {b}")

    def test_a_run_without_ceilings_operations_or_fp32_still_makes_a_page(self):
        text = self.page({"context": {}, "benchmarks": [simple("copy/fp16/100/warm", 3)]})
        self.assertIn("no roofline to draw", text)
        self.assertIn("<td>copy</td><td>100</td><td>warm</td>", text)


class BadInput(ReportTest):
    def test_each_is_answered_in_one_line(self):
        good = self.file("good.json", made.run())
        other = self.file("other.json", {"context": {}, "benchmarks": [simple("x/fp16/1/cold", 1)]})
        self.fails(["cannot read", "none.json", "No such file"], self.folder / "none.json")
        self.fails(["cannot read"], self.folder)
        self.fails(["bad.json is not JSON"], self.file("bad.json", "{"))
        text = good.read_text(encoding="utf-8")
        for cut in (len(text) // 2, text.index("cuDNN engine") + 4, text.index('"bytes": ') + 12):
            self.fails(["bad.json is not JSON: it ends in the middle"], self.file("bad.json", text[:cut]))
        self.fails(["bad.json is not JSON: it is empty"], self.file("bad.json", ""))
        (self.folder / "binary.json").write_bytes(b"\xff\xfe\x00")
        self.fails(["binary.json is not JSON"], self.folder / "binary.json")
        for data in ([], {}, {"benchmarks": [1], "context": {}}, {"benchmarks": {}, "context": {}}, {"context": {}}):
            self.fails(["wrong.json is not Google Benchmark's JSON"], self.file("wrong.json", data))
        self.fails(["no benchmarks"], self.file("empty.json", {"context": {}, "benchmarks": []}))
        self.fails(["BM_x", "<op>/<dtype>/<shape>"],
                   self.file("g.json", {"context": {}, "benchmarks": [simple("BM_x", 1)]}))
        self.fails(["relu/fp16/1", "real_time"],
                   self.file("t.json", {"context": {}, "benchmarks": [{"name": "relu/fp16/1/cold"}]}))
        self.fails(["--filter (", "regular expression"], good, "--filter", "(")
        self.fails(["none of its", "filter nothing_like_it"], good, "--filter", "nothing_like_it")
        self.fails(["no benchmark in common"], "--compare", good, other)
        self.fails(["no benchmark in common"], good, "--peer", other)
        self.fails(["cannot write"], good, "--html", self.folder / "none" / "page.html")
        self.fails(["a file is missing"])
        self.fails(["--compare"], "--compare", good)
        self.fails(["--compare takes two files"], good, "--compare", good, good)
        self.fails(["unrecognized arguments: --nonsense"], good, "--nonsense")
        self.fails(["wrong.json is not JSON"], self.file("wrong.json", "[" * 200000))
        for value in ("nan", "-1", "inf"):
            self.fails(["--threshold", "numbers"], "--compare", good, good, "--threshold", value)
            self.fails(["--floor", "numbers"], "--compare", good, good, "--floor", value)

    def test_the_peers_script_says_that_pytorch_is_missing(self):
        (self.folder / "torch.py").write_text("raise ImportError('no torch')", encoding="utf-8")
        done = subprocess.run([sys.executable, REPORT.parent / "peers" / "torch_ops.py"], capture_output=True,
                              encoding="utf-8", check=False, env={"PYTHONPATH": str(self.folder)})
        self.assertEqual((done.returncode, done.stdout, done.stderr.count("\n")), (1, "", 1), done.stderr)
        self.assertIn("PyTorch is not here", done.stderr)

    def test_no_value_of_any_field_breaks_a_report(self):
        six = made.run()
        six["benchmarks"] = six["benchmarks"][:6]
        good = self.file("six.json", six)
        values = (None, True, 5, -1, 0, "x", "\ud800", [], [1], {}, math.nan, math.inf, -1e308, 1e308, 10 ** 400)
        entry = ("name", "run_name", "run_type", "real_time", "time_unit", "label", "median_us", "spread_percent",
                 "bytes", "flops", "ceiling_percent", "relative_error", "host_us", "error_occurred", "error_message",
                 "aggregate_name")
        context = ("card", "driver", "cudnn", "left_out", "ceiling_copy_GBps", "ceiling_fp16_TFLOPs", "l2_bytes")
        for part, keys in (("benchmarks", entry), ("context", context)):
            for key, value in itertools.product(keys, (*values, "1e400", "-5", "1e-308")):
                data = copy.deepcopy(six)
                (data["benchmarks"][0] if part == "benchmarks" else data["context"])[key] = value
                with self.subTest(key=key, value=value), contextlib.suppress(results.InputError):
                    run, other = results.read(self.file("odd.json", data)), results.read(good)
                    compare.report(other, run, 5, 0.2)
                    page.html_page(other, run)
                    table.check(run)
                    table.markdown(run, other)
                    against.markdown(run, other)
                    against.markdown(other, run)
                    page.html_page(run, other).encode("utf-8", "replace")

    def test_text_that_is_no_unicode_is_shown_with_marks(self):
        data = made.run()
        data["context"]["card"] = "\ud800"
        self.assertIn("card: ?", self.succeeds(self.file("surrogate.json", data)))


if __name__ == "__main__":
    unittest.main()
