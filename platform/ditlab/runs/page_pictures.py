"""Pictures and texts of a run's samples and figures, chosen so that a page stays small."""

from __future__ import annotations

import re
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Protocol

from ditlab.errors import first_line
from ditlab.home import RunFolder
from ditlab.reports.charts import even_places
from ditlab.reports.formatting import shorten
from ditlab.reports.page import (
    NamedPicture,
    Paragraphs,
    Part,
    Slide,
    Slides,
    data_uri,
    read_description,
)
from ditlab.secrets import hide
from ditlab.storage.plain_files import MIB, UnusableFile
from ditlab.tracking.journal import JournalContent
from ditlab_models.figure_kinds import SENTENCES

MOST_STEPS = 60
"""Steps whose samples a page shows."""
BUDGET = 10 * MIB
"""Bytes of all pictures of a file; as data URIs they take a third more."""
_LARGEST_SHOWN = 2 * MIB
"""Bytes of a picture that is shown as it is; a larger one is made smaller."""
_MOST_PIXELS = 1600
_LONGEST_SENTENCE = 200


class PictureSource(Protocol):
    """Pictures of a page by their addresses."""

    most_steps: int
    """Steps whose samples the page shows."""

    def address(self, path: Path, share: int) -> str:
        """Address of a picture that may take `share` bytes. Raises OSError where it cannot be
        shown.
        """


@dataclass
class EmbeddedPictures:
    """Pictures inside the page, as data URIs."""

    most_steps: int = MOST_STEPS
    spent: int = 0
    """Bytes of all pictures so far."""

    def address(self, path: Path, share: int) -> str:
        """Address of a picture that may take `share` bytes. Raises OSError where it cannot be
        shown.
        """
        content, kind = load_picture(path)
        if len(content) > min(_LARGEST_SHOWN, share):
            content, kind = load_picture(path, _MOST_PIXELS)
        if self.spent + len(content) > BUDGET:
            raise UnusableFile("no room is left for it on the page", path)
        self.spent += len(content)
        return data_uri(content, f"picture.{kind}")


def load_picture(path: Path, most_pixels: int | None = None) -> tuple[bytes, str]:
    """Content and kind of a whole picture; with `most_pixels` a JPEG of so many a side. Raises
    OSError for others.
    """
    from PIL import Image

    content = path.read_bytes()
    smaller = BytesIO()
    try:
        with Image.open(BytesIO(content), formats=("PNG", "GIF", "JPEG", "WEBP")) as picture:
            kind = str(picture.format).lower()
            if most_pixels is None:
                picture.verify()
                return content, kind
            made = picture.convert("RGB")
            made.thumbnail((most_pixels, most_pixels))
            made.save(smaller, "JPEG", quality=85)
    # PIL raises its own errors, SyntaxError, struct.error and more for damaged files
    except Exception as error:
        raise UnusableFile(f"no whole picture: {type(error).__name__}", path) from None
    return smaller.getvalue(), "jpeg"


def samples_of(
    folder: RunFolder, journal: JournalContent, pictures: PictureSource, notes: list[str]
) -> list[Part]:
    """Samples by kind, with a slider each. Where the page has no room for all steps, it shows the
    first, the last and evenly spaced steps between them.
    """
    by_key: dict[str, dict[int, str]] = {}
    for record in journal.events:
        if record["kind"] == "image":
            by_key.setdefault(record["key"], {})[record["step"]] = record["path"]
    found: list[Part] = []
    for key, places in sorted(by_key.items(), key=lambda each: each[0] != "samples"):
        steps = sorted(places)
        chosen = [steps[place] for place in even_places(len(steps), pictures.most_steps)]
        share = BUDGET // (2 * max(1, len(chosen)))
        slides = []
        faults = []
        for step in chosen:
            try:
                slides.append(_slide(folder, places[step], step, pictures, share))
            except OSError as error:
                faults.append((step, first_line(error)))
        if faults:
            step, reason = faults[0]
            notes.append(
                f"{len(faults)} of {len(chosen)} pictures of {key} cannot be shown; step "
                f"{step:,}: {reason}."
            )
        if slides:
            title = f"{shorten(hide(key), 120).capitalize()} by step"
            found.append(Slides(f"samples-{len(found)}", slides, title))
        if len(chosen) < len(places) and (slides or not chosen):
            found.append(
                Paragraphs(
                    f"{len(chosen):,} of {len(places):,} steps are shown; the run's folder has all."
                )
            )
    return found


def _slide(folder: RunFolder, place: str, step: int, pictures: PictureSource, share: int) -> Slide:
    path = folder.path / place
    label = f"step {step:,}"
    alternative = f"Samples of {label}"
    text = read_shown(path.with_suffix(".txt"))
    if text:
        return Slide(label, alternative=alternative, text=text)
    captions = read_shown(path.with_suffix(".captions")).splitlines()
    if captions:
        shown = [each[:100] for each in captions[:16]]
        if len(captions) > 16:
            shown.append("and more")
        alternative += f": {'; '.join(shown)}"
    return Slide(label, pictures.address(path, share), alternative, captions=captions)


def read_shown(path: Path, notes: list[str] | None = None) -> str:
    """A text file's content without secrets; empty, with a note where one is wanted, where it
    cannot be read.
    """
    try:
        return hide(path.read_bytes().decode(errors="replace"))
    except OSError as error:
        if notes is not None:
            notes.append(f"{path.name} cannot be read ({first_line(error)}).")
    return ""


def figures_of(folder: RunFolder, pictures: PictureSource, notes: list[str]) -> list[NamedPicture]:
    """Figures that `ditlab figures` left in the run's folder, the most telling kinds first."""
    place = folder.media / "figures"
    order = {kind: number for number, kind in enumerate(SENTENCES)}
    try:
        paths = [path for path in place.iterdir() if path.suffix in (".png", ".gif")]
    except OSError:
        return []
    paths.sort(key=lambda path: (order.get(path.stem, len(order)), path))
    found = []
    share = BUDGET // (4 * max(1, len(paths)))
    for path in paths:
        if path.suffix == ".png" and path.with_suffix(".gif") in paths:
            continue  # shown with its animation
        try:
            source = pictures.address(path, share)
            # an animation has its still beside it
            about = hide(read_description(path.with_suffix(".png")))
            sentence = SENTENCES.get(path.stem) or shorten(about, _LONGEST_SENTENCE)
            found.append(NamedPicture(re.sub(r"[-_]+", " ", path.stem), source, about, sentence))
        except OSError as error:
            notes.append(f"The figure {path.name} cannot be shown ({first_line(error)}).")
    return found
