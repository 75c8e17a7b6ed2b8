"""MLflow as a reviewer sees it: notes that people may change, samples by step, models, a list with
columns.
"""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from safetensors.numpy import save_file

from ditlab.tracking.history import DEVICES_TAG, MAIN_TAG
from ditlab.tracking.journal import current_time
from ditlab.tracking.mlflow_backend import NOTE_TAG, OWN_TAG, weights_step
from ditlab.tracking.mlflow_runs import VIEW_TAG
from ditlab.tracking.review import end_run, log_model, log_overview, renew_note, renew_review
from ditlab.tracking.tracker import RunTracker
from ditlab_addons.housekeeping.removal import delete_mlflow_run
from support.journals import log_dataset
from support.stored import Stored, draw, send_again

pytestmark = pytest.mark.usefixtures("store")


@pytest.fixture
def open_run(home):
    """`open_run(folder)`: a run of digits that has started, again where it was sent before."""

    def start(folder):
        tracker = RunTracker(folder, None, home)
        tags = {MAIN_TAG: "eval/velocity"}
        tracker.start("digits-dit", "digits", "dit", {"parameters.total": "10"}, tags)
        log_dataset(tracker, "f" * 64, {"train": 1617})
        return tracker

    return start


def stored(tracker):
    """The run in MLflow once everything has arrived."""
    assert tracker.close(30) == 0
    return Stored(tracker)


def evaluate(tracker, step, value):
    tracker.journal.log_metrics(step, {"eval/velocity": value})
    log_overview(tracker, step)
    renew_note(tracker)


def exported(folder, step):
    place = folder.media / "export"
    place.mkdir(parents=True, exist_ok=True)
    weights = {"a": np.zeros(3, np.float32)}
    save_file(weights, place / "weights.safetensors", {"format": "pt", "step": str(step)})
    (place / "spec.yaml").write_text("model: {}\n")
    return place


def shade(found, file):
    with Image.open(found.file(file)) as image:
        return int(np.asarray(image)[0, 0, 0])


def test_a_note_is_renewed_until_a_person_writes_one(new_run, open_run):
    folder = new_run()
    tracker = open_run(folder)
    evaluate(tracker, 0, 1.7)
    evaluate(tracker, 300, 0.5)
    first = stored(tracker).tags[NOTE_TAG]
    assert "| eval/velocity | &ensp;0.5 | &ensp;1.7 |" in first and "digits-dit" in first

    tracker = open_run(folder)
    evaluate(tracker, 600, 0.25)
    found = stored(tracker)
    assert "| eval/velocity | &ensp;0.25 | &ensp;1.7 |" in found.tags[NOTE_TAG]

    for words in ("Ours is better.", ""):  # an emptied note is a person's, too
        found.client.set_tag(found.id, NOTE_TAG, words)
        tracker = open_run(folder)
        evaluate(tracker, 700 + len(words), 0.2)
        assert stored(tracker).tags[NOTE_TAG] == words


@pytest.mark.parametrize("calls", [1, 2])
def test_a_crash_between_the_notes_two_calls_leaves_it_ours(home, new_run, open_run, calls):
    """A process that dies after the hash, or after the note and before the cursor."""
    tracker = open_run(new_run())
    evaluate(tracker, 0, 1.7)
    found = stored(tracker)
    if calls == 1:
        old = found.tags[OWN_TAG].split()[-1]
        found.client.set_tag(found.id, OWN_TAG, f"{old} {'0' * 32}")
    else:
        send_again(tracker, home)
    tracker = open_run(tracker.folder)
    evaluate(tracker, 300, 0.5)
    assert "0.5" in stored(tracker).tags[NOTE_TAG]


def test_samples_sort_by_step_and_the_newest_has_a_name(home, new_run, open_run, tmp_path):
    tracker = open_run(new_run())
    for step, value in ((0, 0), (900, 90), (12000, 120)):
        tracker.log_image("samples", step, draw(tmp_path / f"{step}.png", value))
    renew_note(tracker)
    found = stored(tracker)
    names = ["latest.png", "samples-00000000.png", "samples-00000900.png", "samples-00012000.png"]
    assert found.files("samples") == [f"samples/{name}" for name in names]
    assert shade(found, "samples/latest.png") == 120
    address = f"(get-artifact?path=samples/samples-00012000.png&run_uuid={found.id})"
    assert address in found.tags[NOTE_TAG]
    send_again(tracker, home)  # older images come once more, and leave the newest as it is
    assert shade(found, "samples/latest.png") == 120 and len(found.files("samples")) == 4
    cards = [path for path in found.files("images") if path.endswith(".png")]
    assert len(cards) == 4 and sorted(cards) == cards
    assert "samples~latest+step+00000000+" in cards[0] and shade(found, cards[0]) == 120


def test_the_card_shows_the_last_frame_of_an_animation(new_run, open_run):
    folder = new_run()
    folder.media.mkdir()
    frames = [Image.fromarray(np.full((8, 8), value, np.uint8)) for value in (10, 200)]
    frames[0].save(folder.media / "samples.gif", save_all=True, append_images=frames[1:])
    tracker = open_run(folder)
    tracker.log_image("samples", 5, folder.media / "samples.gif")
    assert abs(shade(stored(tracker), "samples/samples-00000005.png") - 200) < 5


def test_exported_weights_are_a_model_of_the_run(home, new_run, open_run):
    folder = new_run()
    tracker = open_run(folder)
    evaluate(tracker, 0, 1.7)
    evaluate(tracker, 600, 0.25)
    log_model(tracker, 600, exported(folder, 600))
    end_run(tracker, "finished")
    found = stored(tracker)
    for _ in range(2):
        (model,) = found.client.search_logged_models([found.experiment])
        assert (model.name, model.status.value) == ("digits-dit", "READY")
        assert model.source_run_id == found.id
        assert model.tags["ditlab.step"] == "600" and model.params["parameters.total"] == "10"
        (metric,) = model.metrics
        assert (metric.key, metric.value, metric.step) == ("eval/velocity", 0.25, 600)
        assert (metric.dataset_name, metric.dataset_digest) == ("digits", "f" * 36)
        outputs = Stored(tracker).run.outputs.model_outputs
        assert [(each.model_id, each.step) for each in outputs] == [(model.model_id, 600)]
        assert found.points("eval/velocity") == [(0, 1.7), (600, 0.25)]
        place = Path(model.artifact_location)
        assert {path.name for path in place.iterdir()} == {"weights.safetensors", "spec.yaml"}
        send_again(tracker, home)

    tracker = open_run(folder)  # `ditlab evaluate`
    tracker.journal.log_metrics(600, {"held_out/velocity": 0.3})
    renew_review(tracker, 600)
    assert "held&#95;out/velocity" in stored(tracker).tags[NOTE_TAG]
    (model,) = found.client.search_logged_models([found.experiment])
    values = {metric.key: metric.value for metric in model.metrics}
    assert values == {"eval/velocity": 0.25, "held_out/velocity": 0.3}
    assert delete_mlflow_run(folder.run_id, tracker.uri, home)
    assert found.client.search_logged_models([found.experiment]) == []


def test_a_model_whose_upload_was_cut_off_is_completed(new_run, open_run):
    folder = new_run()
    found = stored(open_run(folder))
    for _ in range(2):  # the second by a request whose answer was lost
        tags = {"ditlab.step": "600"}
        found.client.create_logged_model(found.experiment, "digits-dit", found.id, tags)
    tracker = open_run(folder)
    log_model(tracker, 600, exported(folder, 600))
    # whose weights were replaced before they could be sent
    log_model(tracker, 300, exported(folder, 600))
    assert len(stored(tracker).run.outputs.model_outputs) == 1
    (model,) = found.client.search_logged_models([found.experiment])
    assert model.status.value == "READY" and weights_step(folder.media / "nothing") is None


def test_the_list_of_runs_has_columns_that_answer(new_run, open_run):
    tracker = open_run(new_run())
    tracker.set_tags({DEVICES_TAG: "2 GPU", "ditlab.changed": "lr=0.1 (was 0.2); since aaaa"})
    # a roll-back evaluates a step once more
    for step, value in ((0, 1.7), (300, 0.2), (600, 0.400012), (300, 9.0)):
        evaluate(tracker, step, value)
    tracker.journal.facts.count_time(current_time() + 3_600_000)
    end_run(tracker, "stopped")
    found = stored(tracker)
    metrics = found.run.data.metrics
    assert metrics["best/eval/velocity"] == 0.2 and metrics["eval/velocity"] == 0.400012
    assert metrics["run/parameters"] == 10 and found.tags["ditlab.status"] == "stopped"
    assert 3600 <= metrics["run/seconds"] < 3660 and 2 <= metrics["run/gpu_hours"] < 2.04
    assert found.tags["ditlab.baseline"] == "untrained 1.7"
    assert found.points("best/eval/velocity") == [(0, 1.7), (300, 0.2), (600, 0.2)]
    view = json.loads(found.client.get_experiment(found.experiment).tags[VIEW_TAG])
    columns = json.loads(view["state"])["selectedColumns"]
    assert columns[:2] == ["metrics.`best/eval/velocity`", "metrics.`eval/velocity`"]
    shown = {"metrics.`run/gpu_hours`", "tags.`ditlab.changed`", "tags.`ditlab.status`"}
    assert shown <= set(columns)


def test_few_tags_are_shown_and_a_file_has_all(new_run, open_run):
    tracker = open_run(new_run())
    shown = {
        "ditlab.changed": "nothing; since aaaa",
        "ditlab.forked_from": "aaaa@4",
        "ditlab.data": "digits 1234",
        "ditlab.resume.optimizer.lr": "0.5",
    }
    hidden = {"ditlab.threads": "1", "ditlab.measurement.eval": "{}"}
    tracker.set_tags({**shown, **hidden, "mlflow.source.git.commit": "abc"})
    renew_note(tracker)
    evaluate(tracker, 600, 0.2)
    end_run(tracker, "finished")
    found = stored(tracker)
    visible = {key for key in found.tags if not key.startswith("mlflow.")}
    assert visible == {*shown, "ditlab.run", "ditlab.family", "ditlab.status"}
    tags = json.loads(found.file("facts.json").read_text())
    assert tags == tracker.journal.facts.tags and shown.items() <= tags.items()
    assert tags["mlflow.source.git.commit"] == found.tags["mlflow.source.git.commit"] == "abc"
