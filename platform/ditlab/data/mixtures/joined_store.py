"""Joined store: the rows of a mixture's parts, numbered part after part."""

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Literal

import numpy as np

from ditlab.data.mixtures.agreement import DIFFER, SHAPES_DIFFER, check_tokenizers, column_problems, shape_problems
from ditlab.data.mixtures.stacked_store import StackedStore
from ditlab.data.stores.bucket_manifest import BucketsManifest, merged_column
from ditlab.data.stores.bucketed_store import AnyStore, BucketedStore
from ditlab.data.stores.manifest import Source, TextFacts
from ditlab.errors import UserError

Draw = Literal["sample", "batch"]
"""Unit that draws a part: each sample, or each batch."""

NAMED_PARTS = 6
"""Most parts in the name of a mixture, as MLflow shows it."""


class JoinedManifest(BucketsManifest):
    """Facts of a joined store, which is written nowhere."""

    joined_rows: int
    """Rows of all parts."""
    joined_text: TextFacts | None
    """Facts about the text of all parts; null where one holds none."""
    joined_attachments: dict[str, str]
    """Attachments of the first part: its tokeniser is everyone's."""

    @property
    def rows(self) -> int:
        """Rows of all parts."""
        return self.joined_rows

    @property
    def text(self) -> TextFacts | None:
        """Facts about the text of all parts."""
        return self.joined_text

    @property
    def attachments(self) -> Mapping[str, str]:
        """Attachments of the first part."""
        return self.joined_attachments


class JoinedStore(BucketedStore):
    """Stores of a mixture's parts as one. Its columns are those that all of them hold alike.

    Where every column has one shape, `parts` is a single store over all of them, and a batch may mix them. Otherwise
    `parts` are the stores of one shape, part after part, and a batch is of one of them.
    """

    def __init__(self, stores: Mapping[str, AnyStore], draw: Literal["auto", "sample", "batch"] = "auto"):
        """Join the stores of parts by name. Raises UserError for tokens of several tokenisers, for image sizes that
        cannot be drawn by sample, and where no column is common to all."""
        check_tokenizers(stores)
        self.stores = dict(stores)
        """Store of each part by its name."""
        self.path = next(iter(stores.values())).path
        self.problems = {name: f"{clause}; {DIFFER}" for name, clause in column_problems(stores).items()}
        """Reason why a column that some part holds cannot be read, by the column's name."""
        common = [name for name in next(iter(stores.values())).columns if name not in self.problems]
        several = {name: part for name, part in stores.items() if len(part.parts) > 1}
        if draw == "sample":
            if several:
                raise UserError(
                    f"data.draw=sample puts parts in one batch, and data.parts.{next(iter(several))} holds images of "
                    "several sizes; set data.draw to batch."
                )
            shapes = shape_problems(stores, common)
            self.problems |= {name: f"{clause}, and {SHAPES_DIFFER}" for name, clause in shapes.items()}
            common = [name for name in common if name not in shapes]
        if not common:
            raise UserError(next(iter(self.problems.values())))
        flat = [part for store in stores.values() for part in store.parts]
        self.columns = {name: merged_column([part.columns[name] for part in flat]) for name in common}
        self.is_uniform = not several and not shape_problems(stores, common)
        """True if every column has one shape."""
        self.draw: Draw = draw if draw != "auto" else "sample" if self.is_uniform else "batch"
        self.parts = (StackedStore(flat, common),) if self.is_uniform else tuple(flat)
        if self.is_uniform:
            self.columns = dict(self.parts[0].columns)
        self.manifest = _manifest(stores)
        self._ends = np.cumsum([len(part) for part in self.parts])

    @property
    def name(self) -> str:
        """Names of the parts: `a + b`."""
        return " + ".join(self.stores)

    def check_columns(self, names: Iterable[str]) -> None:
        """Raise UserError for the first of some columns, which a model reads, that some part holds, but not all of them
        alike."""
        for name in sorted(names):
            if name in self.problems:
                raise UserError(self.problems[name])

    def first_row(self, part: str) -> int:
        """Return the number of a part's first row."""
        names = list(self.stores)
        return sum(len(self.stores[name]) for name in names[: names.index(part)])

    def first_number(self, part: str) -> int:
        """Return the number in `parts` of a part's first one."""
        names = list(self.stores)
        return 0 if self.is_uniform else sum(len(self.stores[name].parts) for name in names[: names.index(part)])

    def first_block(self, part: str) -> int:
        """Return the number of a part's first block in the one store of `parts`."""
        assert self.is_uniform
        names = list(self.stores)
        return sum(self.stores[name].parts[0].layout.num_blocks for name in names[: names.index(part)])


def joined_fingerprint(fingerprints: Mapping[str, str]) -> str:
    """Return the SHA-256 (hex) of the parts' names and fingerprints, sorted by name; weights do not enter."""
    content = [[name, fingerprints[name]] for name in sorted(fingerprints)]
    return hashlib.sha256(json.dumps(content, separators=(",", ":")).encode()).hexdigest()


def mixture_name(shares: Mapping[str, float], stores: Mapping[str, str]) -> str:
    """Return shares and stores of the first few parts, by part: `0.7 a (digits) + 0.3 b (mnist-train)`."""
    named = [f"{share:.4g} {name} ({stores[name]})" for name, share in shares.items()]
    more = len(named) - NAMED_PARTS
    return " + ".join(named[:NAMED_PARTS] + ([f"{more} more"] if more > 0 else []))


def _manifest(stores: Mapping[str, AnyStore]) -> JoinedManifest:
    return JoinedManifest(
        name="mixture",
        description=" + ".join(store.manifest.description for store in stores.values()),
        buckets=(),
        source=Source(kind="mixture"),
        fingerprint=joined_fingerprint({name: store.fingerprint for name, store in stores.items()}),
        joined_rows=sum(len(store) for store in stores.values()),
        joined_text=_joined_text([store.manifest.text for store in stores.values()]),
        joined_attachments=dict(next(iter(stores.values())).manifest.attachments),
    )


def _joined_text(texts: list[TextFacts | None]) -> TextFacts | None:
    known = [text for text in texts if text is not None]
    if len(known) < len(texts):
        return None
    sums = {name: sum(getattr(text, name) for text in known) for name in ("documents", "bytes", "tokens", "dropped")}
    return known[0].model_copy(update=sums)
