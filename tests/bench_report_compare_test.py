"""bench/report --compare on made-up runs: a planted slow-down is found, noise is not.

    python3 tests/bench_report_compare_test.py
"""
import re
import unittest

import bench_report_results as made
from bench_report_frame import ReportTest, report, simple

PLANTED = "batch_norm_add_relu/fp16/256x32x32x64/cold"


class Compare(ReportTest):
    def compare(self, before, after, *more):
        done = report("--compare", self.file("before.json", before), self.file("after.json", after), *more)
        self.assertEqual(done.stderr, "")
        slower = re.findall(r"^(\S+) .*  SLOWER", done.stdout, re.M)
        self.assertEqual(done.returncode, 1 if slower else 0, done.stdout)
        return slower, done.stdout

    def test_one_kernel_made_20_percent_slower_is_found_and_nothing_else(self):
        for noise in (0.003, 0.01, 0.015):
            for seed in range(3):
                slower, _ = self.compare(made.run(2 * seed, noise), made.run(2 * seed + 1, noise, {PLANTED: 1.2}))
                self.assertEqual(slower, [PLANTED], f"noise {noise}, seed {seed}")

    def test_two_runs_of_the_same_kernels_are_silent(self):
        for noise in (0.0, 0.004, 0.012):  # of a median; the spread of its replays is about twice that
            for seed in range(5):
                slower, text = self.compare(made.run(2 * seed, noise), made.run(2 * seed + 1, noise))
                self.assertEqual(slower, [], f"noise {noise}, seed {seed}")
                self.assertNotIn("moved together", text)

    def test_repetitions_are_told_apart_by_their_ranks(self):
        before, noisy = made.run(1, 0.03, repetitions=10), made.run(2, 0.03, repetitions=10)
        slower, _ = self.compare(before, noisy)
        self.assertEqual(slower, [])
        slower, text = self.compare(before, made.run(3, 0.03, {PLANTED: 1.2}, repetitions=10))
        self.assertEqual(slower, [PLANTED])
        self.assertRegex(text, r"SLOWER \(p = ")

    def test_repetitions_do_not_turn_what_differs_from_run_to_run_into_a_change(self):
        for seed in range(3):
            before, after, slow = (made.run(3 * seed + i, 0.003, {PLANTED: 1.2} if i == 2 else None, repetitions=9,
                                            wander=0.012) for i in range(3))
            self.assertEqual(self.compare(before, after)[0], [])
            self.assertEqual(self.compare(before, slow)[0], [PLANTED])

    def test_ranks_overrule_the_medians_of_scattered_repetitions(self):
        times = ([10, 20] * 5, [20, 10] * 4 + [20, 20])  # medians 15 and 20, the same two values
        before, after = ({"context": {}, "benchmarks": [simple("relu/fp16/9/cold", us) for us in t]} for t in times)
        slower, text = self.compare(before, after)
        self.assertEqual(slower, [])
        self.assertIn("noise: p = ", text)

    def test_launches_of_microseconds_may_wobble(self):
        def one(us):
            return {"context": {}, "benchmarks": [simple("cross_entropy/fp16/256x10/warm", us, spread_percent=1.0)]}
        self.assertEqual(self.compare(one(2.2), one(2.38))[0], [])
        self.assertEqual(len(self.compare(one(2.2), one(2.38), "--floor", 0.1)[0]), 1)
        self.assertEqual(len(self.compare(one(2.2), one(2.64))[0]), 1)

    def test_a_wide_spread_is_noise(self):
        def one(us, spread):
            return {"context": {}, "benchmarks": [simple("add/fp16/9/cold", us, spread_percent=spread)]}
        self.assertEqual(self.compare(one(100, 20), one(115, 20))[0], [])
        self.assertEqual(len(self.compare(one(100, 2), one(115, 2))[0]), 1)
        self.assertEqual(self.compare(one(100, 2), one(104, 2))[0], [])
        self.assertEqual(self.compare(one(115, 2), one(100, 2))[0], [])

    def test_many_slow_kernels_do_not_hide_each_other(self):
        names = [b["name"].removesuffix("/manual_time") for b in made.run()["benchmarks"]]
        half = {n: 1.2 for n in names if n.startswith(("conv_", "batch_norm", "ladder"))}
        slower, _ = self.compare(made.run(1), made.run(2, slower=half))
        self.assertEqual(set(slower), set(half))

    def test_clocks_that_move_everything_are_named(self):
        after = made.run(2, drift=1.08)
        after["context"]["sm_clock_MHz"] = "1830"
        slower, text = self.compare(made.run(1), after)
        self.assertGreater(len(slower), 100)
        self.assertRegex(text, r"moved together: .*\+[78]\.\d %.*SM clock 1980 -> 1830 MHz")
        self.assertIn("moved together", self.compare(made.run(1), made.run(2, drift=0.96))[1])

    def test_a_benchmark_that_fails_now_counts(self):
        after = made.run(1)
        after["benchmarks"][0].update(error_occurred=True, error_message="wrong result")
        slower, text = self.compare(made.run(1), after)
        self.assertEqual(len(slower), 1)
        self.assertIn("fails now: wrong result", text)

    def test_names_in_one_file_are_listed(self):
        before, after = made.run(1), made.run(1)
        before["benchmarks"].append(simple("old/fp16/1/cold", 1))
        after["benchmarks"].append(simple("new/fp16/1/cold", 1))
        _, text = self.compare(before, after)
        self.assertRegex(text, r"Only in \S*before.json \(1\):\n  old/fp16/1/cold\n")
        self.assertRegex(text, r"Only in \S*after.json \(1\):\n  new/fp16/1/cold\n")

    def test_any_google_benchmark_names_can_be_compared(self):
        one = {"context": {}, "benchmarks": [simple("BM_memcpy/8", 10), simple("BM_memcpy/64", 20)]}
        two = {"context": {}, "benchmarks": [simple("BM_memcpy/8", 13), simple("BM_memcpy/64", 20)]}
        self.assertEqual(self.compare(one, two)[0], ["BM_memcpy/8"])


if __name__ == "__main__":
    unittest.main()
