"""Built-in data: stores that need no download, written at their first use.

The 1,797 handwritten 8x8 digits that scikit-learn carries (UCI: Alpaydin and Kaynak 1998), plain or
in several colours with captions; generated regions with planted motif modules, points of a mixture
and tokens of a chain, all with a known optimum; the documentation of the Python installation.
"""

from __future__ import annotations

import ast
import hashlib
import platform
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import lru_cache
from itertools import chain
from pathlib import Path

import numpy as np

from ditlab.data.analytic_targets import VERSION as TARGETS_VERSION
from ditlab.data.analytic_targets import draw_points, draw_tokens
from ditlab.data.images.captions import caption_column, encode_captions
from ditlab.data.importing import ImportRequest
from ditlab.data.planted_modules import VERSION, PlantedModules, feature_names
from ditlab.data.region_windows import plan_windows, region_columns, window_batches
from ditlab.data.stores.manifest import (
    MANIFEST_NAME,
    RGB,
    Column,
    Source,
    TextFacts,
    class_column,
    image_column,
    is_of_another_version,
)
from ditlab.data.stores.row_changes import CAPTION
from ditlab.data.stores.store import Store
from ditlab.data.stores.writing import WrittenStore, write_store
from ditlab.data.text.documents import TextPiece, pieces
from ditlab.data.text.text_import import (
    encode,
    request_tokenizer,
    rows_label,
    token_columns,
    too_short,
)
from ditlab.data.text.tokenizer import TOKENIZER_NAME
from ditlab.errors import UserError
from ditlab.home import Home
from ditlab.progress import ignore_progress
from ditlab.spec.data import (
    CaptionedDigitsData,
    DigitsData,
    GaussianMixtureData,
    MarkovChainData,
    MotifsData,
    TextData,
)
from ditlab.spec.importing import DigitsOptions

DIGITS_COLUMNS = {
    "image": image_column((1, 8, 8), "channel, row, column", 16),
    "label": class_column("the digit", 10),
}
DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
COLOURS = {
    "red": (1, 0, 0),
    "green": (0, 1, 0),
    "blue": (0, 0, 1),
    "yellow": (1, 1, 0),
    "cyan": (0, 1, 1),
    "magenta": (1, 0, 1),
    "white": (1, 1, 1),
}
"""Shares of red, green and blue in the ink; the ground is black."""
UCI_DIGITS = Source(
    kind="digits",
    citation=(
        "E. Alpaydin and C. Kaynak, Optical Recognition of Handwritten Digits, UCI (1998), "
        "test part"
    ),
    license="CC BY 4.0 (UCI Machine Learning Repository)",
    note="embedded in scikit-learn (sklearn.datasets.load_digits)",
)
OMITTED = {
    "ensurepip",
    "idlelib",
    "lib2to3",
    "pydoc_data",
    "test",
    "tests",
    "tkinter",
    "turtle",
    "turtledemo",
}
"""Packages that are skipped: those that not every installation has, and tests."""
REPEATED = 80
"""Characters from which a paragraph is kept only once: the reference and docstrings repeat whole
sections.
"""
Entry = tuple[str, str]
"""Heading and the text below it."""


GeneratedData = MotifsData | GaussianMixtureData | MarkovChainData
BuiltIn = DigitsData | CaptionedDigitsData | TextData | GeneratedData
"""Data whose store is written at its first use."""


def store_name(spec: BuiltIn) -> str:
    """Return the name of a spec's store below `home.stores`; of generated data with a hash of what
    it depends on.
    """
    match spec:
        case DigitsData():
            return "digits"
        case CaptionedDigitsData():
            return f"captioned-digits-{spec.size}-{spec.colours}"
        case TextData():
            return f"python-docs-{rows_label(spec.tokenizer, spec.vocabulary, spec.length)}"
        case _:
            digest = hashlib.sha256(_drawn_from(spec).encode()).hexdigest()
            return f"{spec.kind.replace('_', '-')}-{digest[:12]}"


def _drawn_from(spec: GeneratedData) -> str:
    """Describe what generated data are drawn from."""
    version = VERSION if isinstance(spec, MotifsData) else TARGETS_VERSION
    fields = sorted(spec.model_dump(exclude={"kind", "hold_out"}).items())
    return f"version={version}, " + ", ".join(f"{name}={value}" for name, value in fields)


def open_built_in(spec: BuiltIn, home: Home, verify: bool = True) -> Store:
    """Open a spec's store under `home.stores`, written at its first use, and over one of another
    version; two processes may write it.

    Raises UserError, where text is written, for a tokeniser that cannot be read or fetched, and for
    a length beyond the corpus.
    """
    path = home.stores / store_name(spec)
    manifest = path / MANIFEST_NAME
    if not manifest.exists() or is_of_another_version(manifest):
        home.ensure()
        _write(spec, path)
    return Store.open(path, verify)


def _write(spec: BuiltIn, path: Path) -> None:
    match spec:
        case DigitsData():
            _write_digits(path)
        case CaptionedDigitsData():
            _write_captioned_digits(spec, path)
        case TextData():
            _write_python_docs(spec, path)
        case MotifsData():
            _write_motifs(spec, path)
        case _:
            _write_analytic_target(spec, path)


def import_digits(request: ImportRequest[DigitsOptions]) -> WrittenStore:
    """Write the store `digits`: image uint8 (1, 8, 8) in [0, 16], label int64."""
    return _write_digits(request.out / "digits")


def _write_digits(path: Path) -> WrittenStore:
    from sklearn.datasets import load_digits

    digits = load_digits()
    batch = {
        "image": digits.images.astype(np.uint8)[:, None],  # whole numbers held as float64
        "label": digits.target.astype(np.int64),
    }
    description = "1,797 handwritten digits, 8x8 grey values"
    return write_store(
        path, DIGITS_COLUMNS, [batch], name="digits", description=description, source=UCI_DIGITS
    )


def _write_captioned_digits(spec: CaptionedDigitsData, path: Path) -> None:
    """Write image uint8 (3, size, size) in [0, 255], caption uint8 (bytes,) ("a red seven"), digit
    and colour int64.

    Rows: digit after digit as scikit-learn has them, each in `spec.colours` colours.
    """
    colours = tuple(COLOURS)[: spec.colours]
    captions = [[f"a {colour} {digit}".encode() for colour in colours] for digit in DIGITS]
    longest = max(len(caption) for caption in chain.from_iterable(captions))

    def batches() -> Iterator[dict[str, np.ndarray]]:
        from PIL import Image
        from sklearn.datasets import load_digits

        data = load_digits()
        inks = np.array([COLOURS[colour] for colour in colours], np.uint8)  # (colours, 3)
        for image, label in zip(data.images, data.target, strict=True):
            # scikit-learn's digits are 0 to 16
            grey = Image.fromarray((image / 16).astype(np.float32))
            smooth = grey.resize((spec.size, spec.size), Image.Resampling.BICUBIC)
            shades = (np.asarray(smooth) * 255).round().clip(0, 255).astype(np.uint8)
            yield {
                "image": shades * inks[:, :, None, None],
                CAPTION: encode_captions(captions[label], longest),
                "digit": np.full(len(colours), label, np.int64),
                "colour": np.arange(len(colours)),
            }

    columns = {
        "image": image_column((3, spec.size, spec.size), RGB),
        CAPTION: caption_column(longest),
        "digit": class_column("the digit", len(DIGITS), DIGITS),
        "colour": class_column("of the ink", len(colours), colours),
    }
    note = f"{UCI_DIGITS.note}; enlarged, coloured, captioned by ditlab"
    write_store(
        path,
        columns,
        batches(),
        name=path.name,
        description=(
            f"1,797 digits of {spec.size}x{spec.size} pixels, each in {spec.colours} colours, "
            "captioned"
        ),
        source=UCI_DIGITS.model_copy(update={"kind": "captioned_digits", "note": note}),
    )


def _generated(spec: GeneratedData) -> Source:
    """Return the origin of generated data."""
    note = f"drawn from {_drawn_from(spec)} by ditlab"
    return Source(kind=spec.kind, license="none: the numbers are generated", note=note)


def _write_motifs(spec: MotifsData, path: Path) -> None:
    """Write windows of generated regions."""
    law = PlantedModules(spec)
    names = feature_names(spec.motifs)
    peaks = np.concatenate([law.peaks(index) for index in range(spec.chromosomes)])
    drawn = lru_cache(maxsize=1)(law.features)  # windows come chromosome by chromosome

    def features(first: int, stop: int) -> np.ndarray:
        chromosome, begin = divmod(first, spec.peaks)
        return drawn(chromosome)[begin : begin + stop - first]

    write_store(
        path,
        region_columns(spec.regions, names, (1.0,) * len(names), chromosome_names(spec)),
        window_batches(
            peaks, plan_windows(peaks, spec.regions), spec.regions, len(names), features
        ),
        name=path.name,
        description=(
            f"generated regions of {spec.chromosomes} chromosomes, with planted motif modules"
        ),
        source=_generated(spec),
    )


def _write_analytic_target(spec: GaussianMixtureData | MarkovChainData, path: Path) -> None:
    """Write data of an analytic target.

    Columns of a mixture: image float32 (dimensions, 1, 1), or regions float32 (regions, dimensions)
    and present bool (regions,). Of a chain: tokens uint8 (length,).
    """
    columns: dict[str, Column]
    if isinstance(spec, MarkovChainData):
        about = f"{spec.num:,} sequences of a Markov chain"
        columns = {
            "tokens": Column(
                dtype="uint8", shape=(spec.length,), num_classes=spec.states, unit="token"
            )
        }
        batch = {"tokens": draw_tokens(spec)}
    elif spec.regions is None:
        about = f"{spec.num:,} points of a mixture of Gaussians"
        shape = (spec.dimensions, 1, 1)
        columns = {
            "image": Column(dtype="float32", shape=shape, value_range=(-1, 1), unit="coordinate")
        }
        batch = {"image": draw_points(spec).reshape(-1, *shape)}
    else:
        about = f"{spec.num:,} times {spec.regions} points of a mixture"
        window = (spec.regions, spec.dimensions)
        columns = {
            "regions": Column(dtype="float32", shape=window, unit="coordinate"),
            "present": Column(dtype="bool", shape=window[:1]),
        }
        batch = {"regions": draw_points(spec), "present": np.ones((spec.num, spec.regions), bool)}
    write_store(path, columns, [batch], name=path.name, description=about, source=_generated(spec))


def chromosome_names(spec: MotifsData) -> list[str]:
    """Return the names of the spec's chromosomes, `chr1` and so on."""
    return [f"chr{number}" for number in range(1, spec.chromosomes + 1)]


def _write_python_docs(spec: TextData, path: Path) -> None:
    """Write the documentation of this Python in rows of tokens."""
    version = platform.python_version()
    length = spec.length
    documents = python_docs()
    origin = "data.corpus=python-docs"

    def read() -> Iterator[TextPiece]:
        return chain.from_iterable(pieces([text]) for text in documents)

    tokenizer = request_tokenizer(spec.tokenizer, spec.vocabulary, read, origin, ignore_progress)
    tokens = np.concatenate(list(encode(read(), tokenizer)))
    if len(tokens) < length:
        raise UserError(too_short("data.length", length, origin, len(tokens)))
    dropped = len(tokens) % length
    write_store(
        path,
        token_columns(tokenizer, length),
        [{"tokens": tokens[: len(tokens) - dropped].reshape(-1, length)}],
        name=path.name,
        description=f"documentation of Python {version} in rows of {length:,} tokens",
        source=Source(
            kind="text",
            citation=f"the documentation that Python {version} carries",
            license="PSF-2.0",
            note=(
                f"pydoc_data.topics and the standard library's docstrings of Python {version}; "
                "other versions differ"
            ),
        ),
        text=TextFacts(
            tokenizer=spec.tokenizer,
            documents=len(documents),
            bytes=sum(len(text.encode()) for text in documents),
            tokens=len(tokens),
            dropped=dropped,
        ),
        attachments={TOKENIZER_NAME: tokenizer.content},
    )


def python_docs() -> list[str]:
    """Return a document for each topic of `help()` (pydoc_data.topics), by name, and for each
    module of the standard library, by path: its docstrings in source order. They are the same for
    every installation of one Python version.
    """
    documents: list[list[Entry]] = []
    with suppress(ImportError):  # a Python without its own help
        from pydoc_data.topics import topics

        documents += ([("", topics[name])] for name in sorted(topics))
    library = Path(sysconfig.get_path("stdlib"))
    files = list[Path]()
    for package in sys.stdlib_module_names - OMITTED:
        inside = (library / package).rglob("*.py")
        files += (file for file in inside if OMITTED.isdisjoint(file.relative_to(library).parts))
        module = library / f"{package}.py"
        if module.is_file():
            files.append(module)
    for file in sorted(files):
        name = ".".join(file.relative_to(library).with_suffix("").parts).removesuffix(".__init__")
        documents.append(list(_docstrings(ast.parse(file.read_bytes()), name)))
    seen: set[str] = set()
    texts = ("\n\n".join(_unseen(entries, seen)) for entries in documents)
    return [text for text in texts if text]


def _docstrings(node: ast.AST, name: str) -> Iterator[Entry]:
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    if isinstance(node, documented) and (text := ast.get_docstring(node)):
        yield name, text
    for child in ast.iter_child_nodes(node):
        if isinstance(child, documented[1:]):
            yield from _docstrings(child, f"{name}.{child.name}")
        elif isinstance(child, ast.stmt):
            yield from _docstrings(child, name)


def _unseen(entries: Iterable[Entry], seen: set[str]) -> Iterator[str]:
    """Yield the entries without texts and long paragraphs that were seen before."""
    for heading, text in entries:
        whole = " ".join(text.split())
        kept = []
        if whole in seen:
            continue
        for paragraph in text.strip().split("\n\n"):
            key = " ".join(paragraph.split())
            if len(key) < REPEATED or key not in seen:
                kept.append(paragraph)
                seen.add(key)
        seen.add(whole)
        if kept:
            yield "\n".join([*filter(None, [heading]), "\n\n".join(kept)])
