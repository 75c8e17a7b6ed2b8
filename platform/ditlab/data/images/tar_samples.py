"""Samples of WebDataset tars: images with the members of their key that are their captions and
classes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import groupby

from ditlab.data.images.annotations import ALONE, SHARED, Annotations, folder_class, named_class
from ditlab.data.images.decoding import CaptionedImage
from ditlab.data.images.pictures import IMAGE_SUFFIXES
from ditlab.data.source_files import ESCAPED, BadRecord, SourceFile, num_escaped
from ditlab.data.sources.records import not_read
from ditlab.data.sources.tars import tar_members
from ditlab.data.stores.receipt import DAMAGED, NO_RECORD, REPLACED, DroppedRecord

REPEATED = "images of a tar with the name of one before"
"""Name of the count of these."""


@dataclass(frozen=True)
class TarMember:
    """Member of a tar, with its content, or the reason why it is not read."""

    tar: SourceFile
    name: str
    content: bytes | str | None

    @property
    def file(self) -> SourceFile:
        """The file that unpacking would make of it."""
        return SourceFile("", self.name.removeprefix("./"), 0, "")

    @property
    def key(self) -> str:
        """Key of its sample: its path up to the name's first dot, as in WebDataset."""
        return _key_and_ending(self.name)[0]

    @property
    def ending(self) -> str:
        """Rest of the name, in small letters."""
        return _key_and_ending(self.name)[1]

    def set_aside(self, annotations: Annotations) -> str:
        """Return the reason why it is skipped whatever it holds; empty for none."""
        if self.ending in IMAGE_SUFFIXES or self.ending in annotations.companions:
            return self.file.set_aside
        return self.file.set_aside or not_read(self.ending or self.file.ending)

    def dropped(self, reason: str, detail: str = "") -> DroppedRecord:
        """Return what a receipt says of it."""
        return DroppedRecord(
            place=f"{self.tar.name}: {self.file.name}", reason=reason, detail=detail
        )


def _key_and_ending(name: str) -> tuple[str, str]:
    """Split the path of a tar's member as WebDataset does, at its name's first dot: a sample's key,
    and an ending.
    """
    folder, slash, file = name.rpartition("/")
    stem, dot, ending = file.partition(".")
    return f"{folder}{slash}{stem}", f"{dot}{ending}".lower()


def tar_images(
    file: SourceFile, annotations: Annotations
) -> Iterator[CaptionedImage | DroppedRecord]:
    """Iterate over the images of a tar, and what is none; all from the sample before a damage on is
    one item.

    Neighbours of one key are one sample.
    """
    damage: list[str] = []
    wanted = (*IMAGE_SUFFIXES, *annotations.companions)
    before: set[int] = set()  # hashes of names: a tar may have millions
    members = (TarMember(file, *member) for member in tar_members(file, damage, wanted))
    for _, group in groupby(members, lambda member: member.key):
        sample = list(group)
        if damage:  # known with the last sample, which may lack its caption
            break
        for item in _sample(sample, annotations):
            if isinstance(item, CaptionedImage):
                is_repeated = hash(item.name) in before
                before.add(hash(item.name))
                if is_repeated:
                    item = replace(item, remarks=(*item.remarks, REPEATED))
            yield item
    for each in damage:
        yield DroppedRecord(place=file.name, reason=DAMAGED, detail=each)


def _sample(
    members: Sequence[TarMember], annotations: Annotations
) -> Iterator[CaptionedImage | DroppedRecord]:
    """Iterate over the images of neighbours of one key, and over those that are none of their
    own. Of two that are the same to an image, the later one is taken.
    """
    images: dict[str, TarMember] = {}
    beside: dict[str, TarMember] = {}
    for member in members:
        reason = member.set_aside(annotations)
        if reason:
            yield member.dropped(reason)
            continue
        if member.ending not in IMAGE_SUFFIXES and not isinstance(member.content, bytes):
            yield member.dropped(NO_RECORD, member.content or "")
            continue
        found = beside
        name = member.ending
        if member.ending in IMAGE_SUFFIXES:
            found = images
            name = member.file.name
        if name in found:
            yield found[name].dropped(REPLACED, f"by {member.name}")
        found[name] = member
    yield from _annotated([*images.values()], beside, annotations)
    if not images:
        for member in beside.values():
            yield member.dropped(ALONE)


def _annotated(
    images: Sequence[TarMember], beside: Mapping[str, TarMember], annotations: Annotations
) -> Iterator[CaptionedImage]:
    """Iterate over the images of a sample, with the members beside them that all of them share."""
    contents = {
        ending: member.content
        for ending, member in beside.items()
        if isinstance(member.content, bytes)
    }
    remarks = [SHARED] if beside and len(images) > 1 else []
    for number, member in enumerate(images):
        name = member.file.name
        place = f"{member.tar.name}: {name}"
        problem = member.content if isinstance(member.content, str) else ""
        one = annotations.annotate(name, place, member.content, contents, problem)
        used = 0 if number else len(beside)
        escaped = [ESCAPED] * num_escaped([name])
        yield replace(one, beside=used, remarks=(*remarks, *escaped))


def tar_labels(file: SourceFile, annotations: Annotations) -> set[str | None]:
    """Return the classes of a tar's images, whose pictures are not read for them."""
    labels: set[str | None] = set()
    wanted = tuple(annotations.companions - {".txt"})
    for name, content in tar_members(file, [], wanted):
        member = TarMember(file, name, content)
        is_image = member.ending in IMAGE_SUFFIXES and not member.file.set_aside
        if annotations.label == "folder" and is_image:
            labels.add(folder_class(member.file.name, f"{file.name}: {member.file.name}"))
        elif isinstance(content, bytes):
            with suppress(BadRecord):  # told with its image
                labels.add(named_class(content))
    return labels
