"""Images of a run as files of MLflow: one by step for people, and the pairs that its image card reads.

`samples/samples-00000900.png` and `samples/latest.png` are for people, and sort. The image card finds its pictures in
`images/` by names that hold key, step and time, each as PNG and as WebP, and opens at step 0: the level of chance. The
newest picture is therefore an image of its own, `samples/latest`, of step 0, before `samples/steps`.
"""

from __future__ import annotations

import posixpath
import tempfile
import uuid
from pathlib import Path
from typing import Any

from ditlab.tracking.journal import JournalRecord
from ditlab.tracking.names import artifact_image, as_count, safe_image_key

LATEST, STEPS = "latest", "steps"
"""Names of the two cards, in the section that the image's key names."""

_FOLDER = "images"


def read_image(path: Path) -> Any:
    """Read a picture; of an animation the last frame, which shows the result. Raises PIL's errors."""
    from PIL import Image

    with Image.open(path) as opened:
        opened.seek(getattr(opened, "n_frames", 1) - 1)
        return opened.convert("RGB")


def send_image(client: Any, mlflow_run_id: str, run_id: str, image: Any, record: JournalRecord) -> None:
    """Send an image of a step; sent again, it replaces itself."""
    key, step, time = record["key"], record["step"], record["time"]
    newest_tag = f"ditlab.latest.{safe_image_key(key)}"
    newest = client.get_run(mlflow_run_id).data.tags.get(newest_tag, "")
    is_newest = (as_count(newest) or 0) <= step
    name = safe_image_key(key)
    with tempfile.TemporaryDirectory() as folder:
        _send_pair(client, mlflow_run_id, Path(folder), image, image_name(run_id, f"{name}/{STEPS}", step, time))
        _send_file(client, mlflow_run_id, Path(folder), image, artifact_image(key, step))
        if is_newest:
            # One name for all steps, and thus one file.
            _send_pair(client, mlflow_run_id, Path(folder), image, image_name(run_id, f"{name}/{LATEST}", 0, 0))
            _send_file(client, mlflow_run_id, Path(folder), image, artifact_image(key, None))
    if is_newest:
        client.set_tag(mlflow_run_id, newest_tag, str(step))
    client.set_tag(mlflow_run_id, "mlflow.loggedImages", True)


def image_name(run_id: str, key: str, step: int, time: int) -> str:
    """The file name by which MLflow's UI finds an image: the same at each call, where MLflow draws a random one.

    Its step has leading zeros, which MLflow's UI reads and by which files sort.
    """
    unique = uuid.uuid5(uuid.NAMESPACE_URL, f"ditlab:{run_id}/{key}/{step}/{time}")
    return f"{key.replace('/', '~')}+step+{step:08d}+timestamp+{time}+{unique}"


def _send_pair(client: Any, mlflow_run_id: str, folder: Path, image: Any, name: str) -> None:
    from mlflow.tracking.multimedia import compress_image_size

    whole, small = folder / f"{name}.png", folder / f"{name}+compressed.webp"
    image.save(whole)
    compress_image_size(image).save(small)
    for file in (whole, small):
        client.log_artifact(mlflow_run_id, str(file), _FOLDER)


def _send_file(client: Any, mlflow_run_id: str, folder: Path, image: Any, place: str) -> None:
    file = folder / posixpath.basename(place)
    image.save(file)
    client.log_artifact(mlflow_run_id, str(file), posixpath.dirname(place))
