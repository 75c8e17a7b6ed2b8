"""Draws: what the engine was fed with and drew from, against what spec and order say, to the bit."""

from collections.abc import Iterator, Sequence

import numpy as np

from ditlab.checking.prove.findings import Compared
from ditlab.checking.prove.reading import PlainMicroBatch, PlainReader
from ditlab.checking.prove.records import WholeStep

DRAWS = "draws"


def compare_feeding(whole: WholeStep, expected: Sequence[PlainMicroBatch]) -> Iterator[Compared]:
    """Yield the comparisons of a step's passes: their draw keys, then their samples."""
    step = f"step {whole.step + 1}"
    keys = [micro.key for micro in expected]
    found = [each.key for each in whole.passes]
    wrong = [key for key in keys if found.count(key) != 1] + [key for key in found if key not in keys]
    places = [f"{step}: micro-batch {key.micro_index} from sample {key.start}, step {key.step + 1}" for key in wrong]
    yield Compared(DRAWS, "keys of random numbers", float(len(wrong)), 0.0, "".join(places[:1]))
    samples = {micro.key: micro.samples for micro in expected}
    num, first = 0, ""
    if not wrong:
        for each in whole.passes:
            for place, (one, two) in enumerate(zip(each.samples, samples[each.key], strict=True)):
                if one != two:
                    num += 1
                    first = first or f"{step}: sample {place} of micro-batch {each.key.micro_index}"
    else:
        fed = sorted(digest for each in whole.passes for digest in each.samples)
        due = sorted(digest for micro in expected for digest in micro.samples)
        num, first = sum(one != two for one, two in zip(fed, due, strict=False)) + abs(len(fed) - len(due)), step
    yield Compared(DRAWS, "samples and their order", float(num), 0.0, first)


def compare_epoch(reader: PlainReader, step: int) -> Iterator[Compared]:
    """Yield the comparison of an epoch's samples with one another: none comes twice."""
    samples = reader.epoch(step)
    num = len(samples) - len(np.unique(samples))
    yield Compared(DRAWS, "samples that come twice in an epoch", float(num), 0.0, f"{len(samples):,} samples")
