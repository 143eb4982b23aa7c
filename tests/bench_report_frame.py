"""What the tests of bench/report share: running it, and entries of a result file."""
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

REPORT = pathlib.Path(__file__).resolve().parent.parent / "bench" / "report"


def report(*arguments):
    return subprocess.run([sys.executable, REPORT, *map(str, arguments)], capture_output=True, encoding="utf-8",
                          check=False, env={"PYTHONIOENCODING": "ascii"})  # as in a bare locale


class ReportTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def file(self, name, data):
        path = self.folder / name
        path.write_text(data if isinstance(data, str) else json.dumps(data), encoding="utf-8")
        return path

    def succeeds(self, *arguments):
        done = report(*arguments)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        return done.stdout

    def fails(self, expected, *arguments):
        """One line on stderr, with all of `expected` in it, nothing on stdout, exit status 2."""
        done = report(*arguments)
        self.assertEqual((done.returncode, done.stdout), (2, ""), done.stderr)
        self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
        for text in expected:
            self.assertIn(text, done.stderr)


def simple(name, us, **more):
    return {"name": name, "run_name": name, "run_type": "iteration", "iterations": 1, "real_time": us * 1000,
            "time_unit": "ns", **more}
