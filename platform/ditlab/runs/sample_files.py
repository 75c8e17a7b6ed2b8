"""Files of a run's samples: a picture, and what they say in text."""

from pathlib import Path

from ditlab.home import RunFolder
from ditlab.reports.text_file import save_captions, save_text
from ditlab_models.figures import Figure


def save_samples(folder: RunFolder, step: int, figure: Figure) -> None:
    """Write an evaluation's samples into a run's folder, as pictures and texts. Raises OSError as
    the disk does.
    """
    from ditlab.reports.sweep_pictures import save_strip, strip_path

    save_grid(figure, samples_path(folder, step))
    save_strip(figure, strip_path(folder.media, step))


def save_grid(figure: Figure, path: Path) -> tuple[Path, Path | None]:
    """Write a picture of samples and their text, if any. Raises OSError where the disk refuses."""
    # imports matplotlib: not before the first step
    from ditlab.reports.rendering.render import save_figure

    picture = save_figure(figure, path)
    text = save_text(figure, picture.with_suffix(".txt"))
    save_captions(figure, picture.with_suffix(".captions"))
    return picture, text


def samples_path(folder: RunFolder, step: int) -> Path:
    """Return the picture of an evaluation's samples."""
    return folder.media / f"samples-{step:08d}.png"
