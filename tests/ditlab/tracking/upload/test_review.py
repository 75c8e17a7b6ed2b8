"""MLflow as a reviewer sees it: notes that people may change, samples by step, models, a list with
columns.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from safetensors.numpy import save_file

from ditlab.home import Home, RunFolder
from ditlab.tracking.history import DEVICES_TAG, MAIN_TAG
from ditlab.tracking.journal import current_time
from ditlab.tracking.journal_writer import JournalWriter
from ditlab.tracking.mlflow_backend import NOTE_TAG, OWN_TAG, weights_step
from ditlab.tracking.mlflow_runs import VIEW_TAG
from ditlab.tracking.review import (
    end_run,
    log_model,
    log_overview,
    renew_note,
    renew_review,
)
from ditlab.tracking.tracker import RunTracker
from ditlab.tracking.upload import CursorFile
from ditlab_addons.housekeeping.removal import delete_mlflow_run
from ditlab_addons.housekeeping.sync import sync
from support.journals import log_dataset

NewRun = Callable[..., RunFolder]
NOTE = NOTE_TAG

pytestmark = pytest.mark.usefixtures("store")


def open_run(folder: RunFolder, home: Home, warnings: list[str] | None = None) -> RunTracker:
    tracker = RunTracker(folder, None, home, warn=(warnings if warnings is not None else []).append)
    tracker.start(
        "digits-dit", "digits", "dit", {"parameters.total": "10"}, {MAIN_TAG: "eval/velocity"}
    )
    log_dataset(tracker, "f" * 64, {"train": 1617})
    return tracker


def stored(tracker: RunTracker) -> Any:
    import mlflow

    return mlflow.MlflowClient(tracker.uri).get_run(str(tracker.mlflow_run_id))


def client_of(tracker: RunTracker) -> Any:
    import mlflow

    return mlflow.MlflowClient(tracker.uri)


def evaluate(tracker: RunTracker, step: int, value: float) -> None:
    tracker.journal.log_metrics(step, {"eval/velocity": value})
    log_overview(tracker, step)
    renew_note(tracker)


def send_again(tracker: RunTracker, home: Home) -> None:
    """Send the whole journal once more, as after a crash before the cursor was written."""
    file = CursorFile(tracker.folder, tracker.uri)
    cursor = file.load()
    cursor.offset = 0
    file.save(cursor)
    assert sync(tracker.folder, None, home, warn=pytest.fail) == 0


def picture(path: Path, shade: int) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((8, 8, 3), shade, np.uint8)).save(path)
    return path


def exported(folder: RunFolder, step: int) -> Path:
    place = folder.media / "export"
    place.mkdir(parents=True, exist_ok=True)
    save_file(
        {"a": np.zeros(3, np.float32)},
        place / "weights.safetensors",
        {"format": "pt", "step": str(step)},
    )
    (place / "spec.yaml").write_text("model: {}\n")
    return place


def files(tracker: RunTracker, folder: str) -> list[str]:
    return [file.path for file in client_of(tracker).list_artifacts(tracker.mlflow_run_id, folder)]


def shade(tracker: RunTracker, file: str) -> int:
    with Image.open(client_of(tracker).download_artifacts(tracker.mlflow_run_id, file)) as image:
        return int(np.asarray(image)[0, 0, 0])


def test_a_note_is_renewed_until_a_person_writes_one(home: Home, new_run: NewRun) -> None:
    folder = new_run()
    tracker = open_run(folder, home)
    evaluate(tracker, 0, 1.7)
    evaluate(tracker, 300, 0.5)
    assert tracker.close(30) == 0
    first = stored(tracker).data.tags[NOTE]
    assert "| eval/velocity | &ensp;0.5 | &ensp;1.7 |" in first and "digits-dit" in first

    tracker = open_run(folder, home)
    evaluate(tracker, 600, 0.25)
    assert tracker.close(30) == 0
    assert "| eval/velocity | &ensp;0.25 | &ensp;1.7 |" in stored(tracker).data.tags[NOTE]

    for words in ("Ours is better.", ""):  # an emptied note is a person's, too
        client_of(tracker).set_tag(tracker.mlflow_run_id, NOTE, words)
        tracker = open_run(folder, home)
        evaluate(tracker, 700 + len(words), 0.2)
        assert tracker.close(30) == 0
        assert stored(tracker).data.tags[NOTE] == words


@pytest.mark.parametrize("calls", [1, 2])
def test_a_crash_between_the_notes_two_calls_leaves_it_ours(
    home: Home, new_run: NewRun, calls: int
) -> None:
    """A process that dies after the hash, or after the note and before the cursor."""
    tracker = open_run(new_run(), home)
    evaluate(tracker, 0, 1.7)
    assert tracker.close(30) == 0
    client, run_id = client_of(tracker), tracker.mlflow_run_id
    if calls == 1:
        old = stored(tracker).data.tags
        client.set_tag(run_id, OWN_TAG, f"{old[OWN_TAG].split()[-1]} {'0' * 32}")
    else:
        send_again(tracker, home)
    tracker = open_run(tracker.folder, home)
    evaluate(tracker, 300, 0.5)
    assert tracker.close(30) == 0
    assert "0.5" in stored(tracker).data.tags[NOTE]


def test_a_note_that_was_written_offline_arrives_with_sync(home: Home, new_run: NewRun) -> None:
    folder = new_run()
    journal = JournalWriter(folder)
    journal.append(
        "start", run_id=folder.run_id, name="digits-dit", experiment="digits", family="dit"
    )
    folder.media.mkdir()
    (folder.media / "note.md").write_text(
        "**digits**\n\n![s](picture:samples/samples-00000001.png)\n"
    )
    journal.append("note", path="media/note.md")
    journal.close()
    assert sync(folder, None, home, warn=pytest.fail) == 0
    cursor = CursorFile(folder, f"sqlite:///{home.mlflow_database}").load()
    import mlflow

    note = (
        mlflow.MlflowClient(f"sqlite:///{home.mlflow_database}")
        .get_run(str(cursor.mlflow_run_id))
        .data.tags[NOTE]
    )
    assert (
        f"(get-artifact?path=samples/samples-00000001.png&run_uuid={cursor.mlflow_run_id})" in note
    )


def test_samples_sort_by_step_and_the_newest_has_a_name(
    home: Home, new_run: NewRun, tmp_path: Path
) -> None:
    tracker = open_run(new_run(), home)
    for step, value in ((0, 0), (900, 90), (12000, 120)):
        tracker.log_image("samples", step, picture(tmp_path / f"{step}.png", value))
    assert tracker.close(30) == 0
    names = ["latest.png", "samples-00000000.png", "samples-00000900.png", "samples-00012000.png"]
    assert files(tracker, "samples") == [f"samples/{name}" for name in names]
    assert shade(tracker, "samples/latest.png") == 120
    send_again(tracker, home)  # older images come once more, and leave the newest as it is
    assert shade(tracker, "samples/latest.png") == 120 and len(files(tracker, "samples")) == 4
    cards = [path for path in files(tracker, "images") if path.endswith(".png")]
    assert len(cards) == 4 and sorted(cards) == cards
    assert "samples~latest+step+00000000+" in cards[0] and shade(tracker, cards[0]) == 120


def test_the_card_shows_the_last_frame_of_an_animation(home: Home, new_run: NewRun) -> None:
    folder = new_run()
    folder.media.mkdir()
    frames = [Image.fromarray(np.full((8, 8), value, np.uint8)) for value in (10, 200)]
    frames[0].save(folder.media / "samples.gif", save_all=True, append_images=frames[1:])
    tracker = open_run(folder, home)
    tracker.log_image("samples", 5, folder.media / "samples.gif")
    assert tracker.close(30) == 0
    assert abs(shade(tracker, "samples/samples-00000005.png") - 200) < 5


def test_exported_weights_are_a_model_of_the_run(home: Home, new_run: NewRun) -> None:
    folder = new_run()
    tracker = open_run(folder, home)
    evaluate(tracker, 0, 1.7)
    evaluate(tracker, 600, 0.25)
    log_model(tracker, 600, exported(folder, 600))
    end_run(tracker, "finished")
    assert tracker.close(30) == 0
    for _ in range(2):
        run, client = stored(tracker), client_of(tracker)
        (model,) = client.search_logged_models([run.info.experiment_id])
        assert (model.name, str(model.status.value), model.source_run_id) == (
            "digits-dit",
            "READY",
            run.info.run_id,
        )
        assert model.tags["ditlab.step"] == "600" and model.params["parameters.total"] == "10"
        (metric,) = model.metrics
        assert (metric.key, metric.value, metric.step) == ("eval/velocity", 0.25, 600)
        assert (metric.dataset_name, metric.dataset_digest) == ("digits", "f" * 36)
        assert [(each.model_id, each.step) for each in run.outputs.model_outputs] == [
            (model.model_id, 600)
        ]
        points = client.get_metric_history(run.info.run_id, "eval/velocity")
        assert sorted((point.step, point.value) for point in points) == [(0, 1.7), (600, 0.25)]
        place = Path(model.artifact_location)
        assert {path.name for path in place.iterdir()} == {"weights.safetensors", "spec.yaml"}
        send_again(tracker, home)

    tracker = open_run(folder, home)  # `ditlab evaluate`
    tracker.journal.log_metrics(600, {"held_out/velocity": 0.3})
    renew_review(tracker, 600)
    assert tracker.close(30) == 0
    (model,) = client.search_logged_models([run.info.experiment_id])
    assert {metric.key: metric.value for metric in model.metrics} == {
        "eval/velocity": 0.25,
        "held_out/velocity": 0.3,
    }
    assert "held&#95;out/velocity" in stored(tracker).data.tags[NOTE]
    assert delete_mlflow_run(folder.run_id, tracker.uri, home)
    assert client.search_logged_models([run.info.experiment_id]) == []


def test_a_model_whose_upload_was_cut_off_is_completed(home: Home, new_run: NewRun) -> None:
    folder = new_run()
    tracker = open_run(folder, home)
    tracker.journal.sync()
    assert tracker.close(30) == 0
    run, client = stored(tracker), client_of(tracker)
    tags = {"ditlab.step": "600"}
    for _ in range(2):  # the second by a request whose answer was lost
        client.create_logged_model(run.info.experiment_id, "digits-dit", run.info.run_id, tags)
    tracker = open_run(folder, home)
    log_model(tracker, 600, exported(folder, 600))
    # whose weights were replaced before they could be sent
    log_model(tracker, 300, exported(folder, 600))
    assert tracker.close(30) == 0
    (model,) = client.search_logged_models([run.info.experiment_id])
    assert model.status.value == "READY" and len(stored(tracker).outputs.model_outputs) == 1
    assert weights_step(folder.media / "nothing") is None


def test_the_list_of_runs_has_columns_that_answer(home: Home, new_run: NewRun) -> None:
    folder = new_run()
    tracker = open_run(folder, home)
    tracker.set_tags({DEVICES_TAG: "2 GPU", "ditlab.changed": "lr=0.1 (was 0.2); since aaaa"})
    # a roll-back evaluates a step once more
    for step, value in ((0, 1.7), (300, 0.2), (600, 0.400012), (300, 9.0)):
        evaluate(tracker, step, value)
    tracker.journal.facts.count_time(current_time() + 3_600_000)
    end_run(tracker, "stopped")
    assert tracker.close(30) == 0
    data = stored(tracker).data
    assert data.metrics["best/eval/velocity"] == 0.2 and data.metrics["eval/velocity"] == 0.400012
    assert not {"run/eval", "run/best_eval"} & set(data.metrics), (
        "metrics of different names have no common column"
    )
    assert data.metrics["run/parameters"] == 10 and data.tags["ditlab.status"] == "stopped"
    assert 3600 <= data.metrics["run/seconds"] < 3660 and 2 <= data.metrics["run/gpu_hours"] < 2.04
    assert data.tags["ditlab.baseline"] == "untrained 1.7"
    history = client_of(tracker).get_metric_history(tracker.mlflow_run_id, "best/eval/velocity")
    assert sorted((point.step, point.value) for point in history) == [
        (0, 1.7),
        (300, 0.2),
        (600, 0.2),
    ]
    experiment = stored(tracker).info.experiment_id

    def columns() -> list[str]:
        view = json.loads(client_of(tracker).get_experiment(experiment).tags[VIEW_TAG])
        return json.loads(view["state"])["selectedColumns"]

    assert columns()[:2] == ["metrics.`best/eval/velocity`", "metrics.`eval/velocity`"]
    assert {"metrics.`run/gpu_hours`", "tags.`ditlab.changed`", "tags.`ditlab.status`"} <= set(
        columns()
    )


def test_few_tags_are_shown_and_a_file_has_all(home: Home, new_run: NewRun) -> None:
    folder = new_run()
    tracker = open_run(folder, home)
    shown = {
        "ditlab.changed": "nothing; since aaaa",
        "ditlab.forked_from": "aaaa@4",
        "ditlab.data": "digits 1234",
        "ditlab.resume.optimizer.lr": "0.5",
        "mlflow.source.git.commit": "abc",
    }
    tracker.set_tags({**shown, "ditlab.threads": "1", "ditlab.measurement.eval": "{}"})
    renew_note(tracker)
    evaluate(tracker, 600, 0.2)
    client = client_of(tracker)
    end_run(tracker, "finished")
    assert tracker.close(30) == 0
    visible = {key for key in stored(tracker).data.tags if not key.startswith("mlflow.")}
    assert visible == {*shown, "ditlab.run", "ditlab.family", "ditlab.status"} - {
        "mlflow.source.git.commit"
    }
    tags = json.loads(
        Path(client.download_artifacts(tracker.mlflow_run_id, "facts.json")).read_text()
    )
    assert tags == tracker.journal.facts.tags and shown.items() <= tags.items()


def test_records_of_wrong_shape_and_of_unknown_kinds_are_passed_over(
    home: Home, new_run: NewRun
) -> None:
    folder = new_run()
    journal = JournalWriter(folder)
    journal.append(
        "start", run_id=folder.run_id, name="digits-dit", experiment="digits", family="dit"
    )
    # of wrong shape
    journal.append(
        "model", step=1, name="n", path="media/export", params={}, points=[{"name": "a"}]
    )
    journal.append("hologram", path="x")
    journal.append("tags", values={"ditlab.error": "no"})
    journal.close()
    warnings: list[str] = []
    assert sync(folder, None, home, warn=warnings.append) == 0
    assert len(warnings) == 1 and "2 damaged lines passed over" in warnings[0]
