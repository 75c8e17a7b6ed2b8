"""Builders of small sources of data, as people have them: each takes a folder to build in, and
returns the source.
"""

import gzip
import io
import json
import tarfile
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image, ImageCms

from ditlab.data.images.captions import decode_captions
from ditlab.data.stores.bucketed_store import AnyStore
from support.datasets.photographs import encoded
from support.special_files import put

Build = Callable[[Path], Path]
Content = bytes | str | Callable[[Path], object]
LETTERS = "abcdefghijklmnopqrstuvwxyz"


def colour(letter: str) -> tuple[int, ...]:
    """A colour by which a picture's letter can be told."""
    number = LETTERS.index(letter)
    return tuple(25 + 100 * (number // 3**place % 3) for place in range(3))


def letter_of(mean: Any) -> str:
    return LETTERS[
        sum(round((float(value) - 25) / 100) * 3**place for place, value in enumerate(mean))
    ]


def pic(letter: str, kind: str = "PNG", side: int = 16, **options: object) -> bytes:
    return encoded(Image.new("RGB", (side, side), colour(letter)), kind, **options)


def link(to: str) -> Callable[[Path], object]:
    return lambda path: path.symlink_to(to)


def special(kind: str) -> Callable[[Path], object]:
    return lambda path: put(kind, path)


def empty_folder(path: Path) -> None:
    path.mkdir()


def folder(files: Mapping[str, Content], name: str = "set") -> Build:
    """Files by their paths beside the source, which is the folder `name` among them."""

    def build(into: Path) -> Path:
        for place, content in files.items():
            path = into / place
            path.parent.mkdir(parents=True, exist_ok=True)
            if callable(content):
                content(path)
            else:
                path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return into / name

    return build


def below(files: Mapping[str, Content]) -> Build:
    """Files by their paths below the source."""
    return folder({f"set/{name}": content for name, content in files.items()})


def placed(source: Build | Mapping[str, Content], into: Path) -> Path:
    """Build a source, or place files below one."""
    if callable(source):
        return source(into)
    return below(source)(into)


def check_rows(store: AnyStore, rows: str, captions: list[str] | None, labels: str | None) -> None:
    """Compare the letters of a store's pictures with `rows`, and captions and names of classes."""
    if rows:
        pixels = store.tensor("image").float()
        assert [letter_of(image.mean((1, 2))) for image in pixels] == rows.split()
    if captions is not None:
        assert decode_captions(store.tensor("caption").numpy()) == captions
    if labels is not None:
        names = store.columns["label"].names
        assert [names[number] for number in store.tensor("label").tolist()] == labels.split()


def zipped(
    members: list[tuple[str, bytes | str]],
    change: Callable[[bytes], bytes] = bytes,
    name: str = "z.zip",
) -> Build:
    """A zip of members; `change`: what befalls it then."""

    def build(into: Path) -> Path:
        sink = io.BytesIO()
        with zipfile.ZipFile(sink, "w") as archive:
            for member, content in members:
                archive.writestr(member, content)
        (into / name).parent.mkdir(parents=True, exist_ok=True)
        (into / name).write_bytes(change(sink.getvalue()))
        return into / name

    return build


def tarred(*members: tuple[str, bytes | str | tuple[bytes, str]]) -> Build:
    """A tar of members; a pair: a link of a type to a name."""

    def build(into: Path) -> Path:
        with tarfile.open(into / "t.tar", "w") as archive:
            for name, content in members:
                member = tarfile.TarInfo(name)
                data = b""
                if isinstance(content, tuple):
                    member.type, member.linkname = content
                else:
                    data = content if isinstance(content, bytes) else content.encode()
                member.size = len(data)
                archive.addfile(member, io.BytesIO(data))
        return into / "t.tar"

    return build


def symbolic(name: str) -> tuple[bytes, str]:
    """A link of a tar."""
    return tarfile.SYMTYPE, name


def class_labels(names: list[str]) -> dict[str, str]:
    """Metadata of a schema, as Hugging Face's `datasets` writes it, for a column `label` of
    classes.
    """
    features = {"label": {"names": names, "_type": "ClassLabel"}}
    return {"huggingface": json.dumps({"info": {"features": features}})}


def table(
    columns: Mapping[str, Any], metadata: Mapping[str, str] | None = None, name: str = "t.parquet"
) -> Build:
    """A table in a Parquet file."""

    def build(into: Path) -> Path:
        made = pa.table(dict(columns)).replace_schema_metadata(metadata)
        pq.write_table(made, into / name, row_group_size=2)
        return into / name

    return build


def array(values: list[Any], kind: str) -> pa.Array:
    """An array of one of Arrow's types, by the function that makes it: `string_view`; `dictionary`
    of text.
    """
    if kind == "dictionary":
        return pa.array(values).dictionary_encode()
    return pa.array(values, getattr(pa, kind)())


def gz(text: str) -> bytes:
    return gzip.compress(text.encode())


def zst(text: str) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(text.encode())
    return sink.getvalue().to_pybytes()


def lines(*records: Mapping[str, Any]) -> str:
    return "".join(f"{json.dumps(record)}\n" for record in records)


def pairs(*letters: str) -> list[tuple[str, bytes | str]]:
    """Pictures in PNG, each with its letter as caption behind it."""
    return [
        pair for each in letters for pair in ((f"{each}.png", pic(each)), (f"{each}.txt", each))
    ]


def metadata(*named: str) -> str:
    """Content of a metadata.jsonl with captions of files."""
    return lines(*({"file_name": name, "caption": f"of {name}"} for name in named))


def red_and_green_exchanged() -> bytes:
    """A colour profile that is sRGB but for its name and the places of its first two colours."""
    profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    renamed = profile.replace("sRGB".encode("utf-16-be"), "mine".encode("utf-16-be"))
    return renamed.replace(b"rXYZ", b"none").replace(b"gXYZ", b"rXYZ").replace(b"none", b"gXYZ")
