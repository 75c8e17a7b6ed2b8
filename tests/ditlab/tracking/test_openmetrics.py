"""The state that scrapers read: valid to a strict parser whatever a run is called, and whole at every moment."""

import math

from prometheus_client.openmetrics.parser import text_string_to_metric_families

from ditlab.tracking.openmetrics import INTERVAL, OpenMetricsFile, RunGauges, openmetrics_text
from support.forked import Forked

GAUGES = RunGauges(
    step=120, total_steps=600, samples=3840, is_running=True,
    metrics={"train/loss": 0.25, "train/grad_norm": math.nan, "eval/a": math.inf, "eval/b": -math.inf, "lr": 5e-324},
    phase_seconds={"forward": [1.5, 2.5], "backward": [3.0, 1e21]}, peak_memory=[2**40, 0],
)  # fmt: skip


def samples(text: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """Values by name and labels without `run`; the parser raises ValueError for what the format forbids."""
    found = {}
    for family in text_string_to_metric_families(text):
        assert family.documentation
        for each in family.samples:
            labels = dict(each.labels)
            assert labels.pop("run") == "5ed02709"
            found[each.name, tuple(sorted(labels.items()))] = each.value
    return found


def test_a_strict_parser_reads_every_value():
    names = ("plain", 'a "quoted" name', "back\\slash", "two\nlines", "ünï", "# EOF\n", "\\n")
    for name in names:
        found = samples(openmetrics_text(GAUGES, "5ed02709", name, "dit", 1.5e9).decode())
        assert found["ditlab_run_info", (("family", "dit"), ("name", name))] == 1
    assert found["ditlab_steps", ()] == 120 and found["ditlab_samples_total", ()] == 3840
    assert found["ditlab_phase_seconds_total", (("phase", "backward"), ("worker", "1"))] == 1e21
    assert found["ditlab_peak_memory_bytes", (("worker", "0"),)] == 2**40
    latest = {labels[0][1]: value for (name, labels), value in found.items() if name == "ditlab_metric"}
    assert latest.pop("train/grad_norm") != GAUGES.metrics["train/grad_norm"]  # NaN
    assert latest == {name: value for name, value in GAUGES.metrics.items() if value == value}


def test_the_file_is_renewed_every_few_seconds_and_more_rarely_on_a_slow_disk(tmp_path):
    now, warned = [0.0], list[str]()
    path = tmp_path / "openmetrics.txt"
    file = OpenMetricsFile(path, "5ed02709", "tiny", "dit", warned.append, lambda: now[0])
    made = []

    def gauges(slow: float = 0.0) -> RunGauges:
        made.append(now[0])
        now[0] += slow
        return GAUGES

    for _ in range(101):
        file.renew(gauges)
        now[0] += INTERVAL / 10
    assert len(made) == 11 and samples(path.read_text())
    file.renew(lambda: gauges(slow=1.0), is_last=True)
    num = len(made)
    for _ in range(100):
        now[0] += 2.0
        file.renew(gauges)
    assert len(made) == num and [each.name for each in tmp_path.iterdir()] == [path.name]
    path.unlink()
    path.mkdir()
    for _ in range(2):
        file.renew(gauges, is_last=True)
    assert len(warned) == 1 and str(path) in warned[0] and "training goes on" in warned[0]


WRITER = """
import sys, itertools
from pathlib import Path
from ditlab.tracking.openmetrics import OpenMetricsFile, RunGauges
now = itertools.count(0, 1000)
file = OpenMetricsFile(Path(sys.argv[1]), "5ed02709", "tiny", "dit", print, lambda: next(now))
for step in itertools.count():
    metrics = {f"train/{name}": float(step) for name in range(300)}
    file.renew(lambda: RunGauges(step, 600, step, True, metrics, {"forward": [1.0]}, [1]))
    if step == 1:
        print("writing", flush=True)
"""


def test_a_killed_writer_leaves_the_whole_file_of_some_step(tmp_path):
    path = tmp_path / "openmetrics.txt"
    for _ in range(3):
        writer = Forked(WRITER, str(path))
        assert writer.stdout.readline() == "writing\n"
        for _ in range(2):
            values = {value for (name, _), value in samples(path.read_text()).items() if name == "ditlab_metric"}
            assert len(values) == 1  # all of one step
        writer.kill()
        assert samples(path.read_text())
