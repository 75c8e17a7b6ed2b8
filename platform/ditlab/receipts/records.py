"""Records of receipts: a row of 40 bytes for each step, a line for each attempt, the chain of
digests over both.

A measurement names the data and weights behind a figure.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any, ClassVar

import numpy as np
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

ROW = np.dtype(
    [
        ("step", "<u8"),
        ("attempt", "<u2"),
        ("flags", "u1"),
        ("asked", "u1"),
        ("spare", "<u4"),
        ("samples", "<u8"),
        ("loss", "<f4"),
        ("norm", "<f4"),
        ("lr", "<f4"),
        ("crc", "<u4"),
    ]
)
"""`step` from 1; `attempt` from 1; `samples` as `samples_digest` gives it; `norm` of the gradient
before clipping; `asked`: the place in `VERBS`, from 1, of the request that all workers agreed on
after the step, 0 for none; `crc`, the CRC-32 of the row before it (its own `crc`) and of this row's
other bytes."""
CHECKED = ROW.itemsize - 4
"""Bytes of a row that its checksum covers."""
LEFT_OUT = 1
NOT_APPLIED = 2
"""Flags: the batch was taken from the order and not trained on; the update was skipped, as loss or
gradient was not finite."""
STOP_VERB = "stop-after-evaluation"
VERBS = ("sample", "evaluate", "checkpoint", STOP_VERB)
"""Acts that a run in training is asked for (`ditlab ask`); none of them changes what its steps
compute.
"""
SAMPLES_MASK = (1 << 63) - 1
"""Digests of samples have 63 bits: workers exchange them as signed numbers."""

ORIGIN = hashlib.sha256(b"ditlab receipts 1").hexdigest()
"""Head of a chain without steps, in hexadecimal."""
Natural = Annotated[int, Field(ge=0, lt=1 << 53)]
Positive = Annotated[int, Field(ge=1, lt=1 << 16)]
SHOWN = 12
"""Digits of a digest that people are shown, and that tags hold of each part."""
SETTINGS = "settings of "
"""Beginning of the name of a part that one metric alone depends on: `settings of frequency`."""
PASS_SIZE = "evaluation batch"
THREADS = "threads"
"""Names of the parts for held-out samples of a pass, and for threads of a CPU."""
ROUNDING = frozenset({"precision", "numerics", PASS_SIZE, THREADS})
"""Parts by which figures differ in rounding alone."""
LONGEST_WORDS = 40
"""Characters of the longest words of a part that a tag holds."""
TAG_PREFIX = "ditlab.measurement."
"""Tag of the measurement behind a group of figures: `ditlab.measurement.eval`."""
EVALUATION_TAG = "ditlab.evaluation"
"""Tag with the digest of the last evaluation: of its measurements, the spec and the weights."""
EVALUATED_STEP_TAG = "ditlab.evaluation.step"
"""Tag with the step of the weights that the last evaluation measured."""


def mix64(values: np.ndarray) -> np.ndarray:
    """Mix the bits of 64-bit numbers, one to one (SplitMix64, Steele et al. 2014,
    doi:10.1145/2660193.2660195).
    """
    mixed = values.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ mixed >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ mixed >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    found: np.ndarray = mixed ^ mixed >> np.uint64(31)
    return found


def samples_digest(
    rows: np.ndarray, places: np.ndarray, draws: np.ndarray, step: int, seed: int
) -> int:
    """Return a digest of samples and of the random numbers that they were trained with; sums of it
    modulo 2^63 join.

    The sum over a global batch is the same for every number of workers and every cut of
    micro-batches. A sample that is missing, comes twice, or lies at another place changes it.
    `rows` are the store's, `places` those in the global batch, `draws` those of random numbers
    (`draw_places`), (samples,) each; `step`, from 0, and `seed` key the numbers.
    """
    # of the step's digests
    key = mix64(np.array([seed & ((1 << 64) - 1)], np.uint64) ^ mix64(np.array([step])))
    mixed = mix64(
        rows.astype(np.uint64)
        ^ mix64(places.astype(np.uint64) ^ mix64(draws.astype(np.uint64) ^ key))
    )
    return int(mixed.sum(dtype=np.uint64)) & SAMPLES_MASK


def draw_places(micro_index: int, start: int, count: int) -> np.ndarray:
    """Return the places of the random numbers of `count` samples from place `start` of a
    micro-batch on, (count,).
    """
    return np.arange(start, start + count, dtype=np.uint64) + np.uint64(micro_index << 32)


def joined_digest(digests: list[int]) -> int:
    """Join the digests of parts of a batch."""
    return sum(digests) & SAMPLES_MASK


def intact_rows(content: bytes) -> np.ndarray:
    """Return the rows of a file's content up to the first that is torn or altered, as an array of
    ROW.
    """
    before = 0
    num = 0
    view = memoryview(content)
    for start in range(0, len(content) - ROW.itemsize + 1, ROW.itemsize):
        before = zlib.crc32(view[start : start + CHECKED], before)
        if before != int.from_bytes(view[start + CHECKED : start + ROW.itemsize], "little"):
            break
        num += 1
    return np.frombuffer(content, ROW, num).copy()


def next_head(head: str, row: bytes, begun: RecordedAttempt | None) -> str:
    """Return the head after one more row; `begun` is its attempt where the row is that attempt's
    first one.
    """
    link = hashlib.sha256(bytes.fromhex(head))
    if begun is not None:
        link.update(bytes.fromhex(begun.digest))
    link.update(row[:CHECKED])
    return link.hexdigest()


@dataclass(frozen=True)
class RecordedAttempt:
    """One attempt: a process group that begins or goes on with a run."""

    attempt: Positive
    """Number, from 1."""
    step: Natural
    """Steps done where it begins."""
    workers: Positive
    microbatch_splits: Natural
    """Number of times that the micro-batch was halved for memory."""
    left_out: list[Natural]
    """Steps, from 1, whose batches it skips."""
    device: str
    """`cpu`, or the GPU's name."""
    processor: str
    """Model of the first worker's CPU."""
    threads: Natural
    """Threads that each worker computes with."""
    versions: dict[str, str]
    """Versions of Python, torch, deepspeed, numpy and ditlab."""
    code: str
    """SHA-256 over the Python sources of ditlab, ditlab_models and the plugin packages of the
    run.
    """
    data: str
    """Fingerprint of the training data."""
    spec_hash: str
    numerics: Natural
    """Version of the numbers (`ditlab.numerics`)."""
    blocks: str
    """Origin of the blocks' numbers (`ditlab.spec.compiling`)."""
    chain: str
    """Head of the chain where it begins, in hexadecimal."""
    digest: str = ""
    """SHA-256 of all fields above, in hexadecimal."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    def to_record(self) -> dict[str, Any]:
        """Return the fields of its line, with the digest over all others."""
        record = asdict(self)
        del record["digest"]
        return record | {"digest": _digest(record)}


_adapter = TypeAdapter(RecordedAttempt)


def parse_attempt(record: Mapping[str, Any]) -> RecordedAttempt | None:
    """Return the attempt of a line; None for a line that is damaged or no attempt's."""
    fields = {name: value for name, value in record.items() if name != "digest"}
    try:
        found = _adapter.validate_python(dict(record))
    except ValidationError:
        return None
    if found.digest == _digest(fields):
        return found
    return None


def _digest(fields: Mapping[str, Any]) -> str:
    text = json.dumps(fields, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True)
class Measurement:
    """Everything that figures are measured with, apart from the network that is measured."""

    digest: str
    """SHA-256 over all parts, in hexadecimal."""
    parts: Mapping[str, str]
    """Digest of each part by its name (`held-out samples`, `sampler`), or its first digits."""
    words: Mapping[str, str] = field(default_factory=dict, compare=False)
    """Value of each part in words: `fp32`, `128`, else as JSON; of one from a tag the short ones
    alone.
    """

    @classmethod
    def of(cls, parts: Mapping[str, Any]) -> Measurement:
        """Return a measurement with these parts, values of JSON's types."""
        found = {name: _value_digest(value) for name, value in sorted(parts.items())}
        words = {}
        for name in found:
            value = parts[name]
            words[name] = value if isinstance(value, str) else json.dumps(value)
        return cls(_value_digest(found), found, words)

    @classmethod
    def parse(cls, tag: str) -> Measurement | None:
        """Return the measurement that `to_tag` wrote; None for another text."""
        try:
            record = json.loads(tag)
            digest = record["digest"]
            tables = (record["parts"], record.get("words", {}))
            values = [digest, *tables[0].values(), *tables[1].values()]
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            return None
        if all(isinstance(value, str) for value in values):
            return cls(digest, *tables)
        return None

    def to_tag(self) -> str:
        """Return the digest, the first digits of its parts' and the values that are short, as a
        tag's value.
        """
        parts = {name: text[:SHOWN] for name, text in self.parts.items()}
        words = {name: text for name, text in self.words.items() if len(text) <= LONGEST_WORDS}
        return json.dumps({"digest": self.digest, "parts": parts, "words": words})

    def to_dict(self) -> dict[str, object]:
        """The measurement in JSON's types."""
        return {"digest": self.digest, "parts": dict(self.parts), "words": dict(self.words)}

    def protocol(self, metric: str) -> str:
        """Return a short digest of the parts that a metric depends on, but for those that change
        rounding alone: values of one metric rank where it is equal."""
        parts = {name: text[:SHOWN] for name, text in self.parts.items() if concerns(name, metric)}
        return _value_digest({name: text for name, text in parts.items() if name not in ROUNDING})[
            :SHOWN
        ]

    def differences(self, other: Measurement) -> list[str]:
        """Return in words how this measurement differs from another: `threads 1 in place of 2`, or
        a part's name where the words are long or unknown.
        """
        found = []
        for part in differing_parts([self, other]):
            own = self.words.get(part)
            theirs = other.words.get(part)
            if own is None or theirs is None or max(len(own), len(theirs)) > LONGEST_WORDS:
                found.append(part)
            else:
                found.append(f"{part} {own} in place of {theirs}")
        return found

    @property
    def shown(self) -> str:
        """The digest's first digits."""
        return self.digest[:SHOWN]


def concerns(part: str, metric: str) -> bool:
    """Return True for a part of a measurement that a metric depends on, whose name has no group:
    `velocity`.
    """
    return not part.startswith(SETTINGS) or part == f"{SETTINGS}{metric.rpartition('/')[2]}"


def differing_parts(measurements: Iterable[Measurement], metric: str | None = None) -> list[str]:
    """Return the names of the parts in which measurements differ, sorted; with `metric` those that
    it depends on.
    """
    known = list(measurements)
    names = sorted(set().union(*(each.parts for each in known)))
    if metric is not None:
        names = [name for name in names if concerns(name, metric)]
    return [name for name in names if len({each.parts.get(name, "")[:SHOWN] for each in known}) > 1]


def recorded_measurements(tags: Mapping[str, str], *groups: str) -> dict[str, Measurement]:
    """Return the measurement behind each of these groups of figures, where a run's tags hold it."""
    found = {group: Measurement.parse(tags.get(f"{TAG_PREFIX}{group}", "")) for group in groups}
    return {group: each for group, each in found.items() if each}


def protocols_text(tags: Mapping[str, str], *groups: str) -> str:
    """Write the digests of what groups of figures are measured with: `Protocol: eval
    4be1c20f9a31.`; empty for none.
    """
    found = [
        f"{group} {each.shown}" for group, each in recorded_measurements(tags, *groups).items()
    ]
    if not found:
        return ""
    plural = "s" if len(found) > 1 else ""
    return f"Protocol{plural}: {', '.join(found)}."


def evaluation_digest(measurements: Mapping[str, Measurement], spec_hash: str, weights: str) -> str:
    """Return the digest of an evaluation: of its measurements by group, of the spec, and of
    `weights`, a digest.
    """
    return _value_digest(
        [{name: each.digest for name, each in measurements.items()}, spec_hash, weights]
    )


def measurement_tags(measurements: Mapping[str, Measurement]) -> dict[str, str]:
    """Return the tags of measurements by group of figures."""
    return {f"{TAG_PREFIX}{group}": each.to_tag() for group, each in measurements.items()}


def _value_digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
