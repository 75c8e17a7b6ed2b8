"""The table of all benchmarks, what is refused and skipped, and the interval of a median."""

import json

import pytest

from benchmarks.rounds import median_interval
from benchmarks.run_all import NEEDS, BenchmarkResult, describe, main, run_benchmark, write
from benchmarks.small_sizes import SMALL

RESULTS = [
    BenchmarkResult("step/step_time", "done", "ratio 1.010", 61.4),
    BenchmarkResult("runs/sweep_cost", "skipped", "needs ray", 0.0),
]


def test_the_table_and_the_file_hold_every_result(tmp_path):
    heading, first, second = describe(RESULTS).splitlines()
    assert heading.split() == ["benchmark", "seconds", "figure"]
    assert first.split() == ["step/step_time", "61", "ratio", "1.010"]
    assert second.endswith("skipped: needs ray")
    write(RESULTS, tmp_path / "new" / "bench.json", quick=True)
    document = json.loads((tmp_path / "new" / "bench.json").read_text())
    assert document["quick"] and [each["name"] for each in document["results"]] == ["step/step_time", "runs/sweep_cost"]
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["bench.json"]


def test_without_its_packages_a_benchmark_is_skipped():
    assert set(NEEDS) <= set(SMALL)
    for name, packages in NEEDS.items():
        assert run_benchmark(name, [], lambda _: False) == BenchmarkResult(
            name, "skipped", f"needs {' and '.join(packages)}", 0.0
        )


@pytest.mark.parametrize(("arguments", "named"), [(["--only", "step/none"], "step/none"), (["--out", "."], "--out .")])
def test_a_wrong_argument_is_named(arguments, named, capsys):
    with pytest.raises(SystemExit) as refused:
        main(arguments)
    assert refused.value.code == 2
    assert named in capsys.readouterr().err


def test_the_interval_of_a_median():
    assert median_interval(range(1, 21)) == (6, 15)  # tables of the sign test: 20 values, 95%
    assert median_interval([3.0]) == (3.0, 3.0)
    with pytest.raises(ValueError, match="--rounds"):
        median_interval([])
