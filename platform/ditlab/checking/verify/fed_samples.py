"""Digests of samples, computed anew from the spec, the order and the data's rows alone."""

from collections.abc import Iterator, Mapping

import numpy as np

from ditlab.analysis.opened_run import OpenedRun
from ditlab.checking.verify.findings import VerifiedPart
from ditlab.checkpoints.manifest import CheckpointManifest
from ditlab.data.orders import training_order
from ditlab.data.splits import DataSplits
from ditlab.receipts.reading import Receipts
from ditlab.receipts.records import LEFT_OUT, draw_places, samples_digest

ROWS = 4_000_000
"""Samples whose digests are computed anew at most: a second or two."""


def check_samples(
    run: OpenedRun, receipts: Receipts, data: DataSplits, manifests: Mapping[int, CheckpointManifest], seed: int
) -> Iterator[VerifiedPart]:
    """Compare the digest of what steps were fed with what spec, order and draws say; of many steps, some at random."""
    experiment = run.experiment
    size = experiment.batch.size
    trained = receipts.rows[(receipts.rows["flags"] & LEFT_OUT) == 0]
    if not len(trained):
        yield VerifiedPart("samples", "not checked", "no step has a receipt.")
        return
    num = max(1, ROWS // size)
    generator = np.random.default_rng(seed)
    chosen = trained if len(trained) <= num else trained[np.sort(generator.choice(len(trained), num, replace=False))]
    # A fork may begin at a step whose position is not that many batches.
    behind = {manifest.position - manifest.step * size for manifest in manifests.values()}
    offset = behind.pop() if len(behind) == 1 else 0
    draws = {manifest.position: manifest.draws for manifest in manifests.values() if manifest.draws}
    order = training_order(experiment.data, data, size, experiment.seed, draws)
    unit = experiment.batch.micro or size
    places = np.arange(size)
    keys = np.concatenate([draw_places(first // unit, 0, min(unit, size - first)) for first in range(0, size, unit)])
    for number, row in enumerate(chosen):
        if number % 1000 == 0:
            run.progress("computing digests of samples", number, len(chosen), "steps")
        step = int(row["step"])
        batch = order.batch_number((step - 1) * size + offset)
        rows = data.train.rows[order.batches(batch, 1, places).reshape(-1)]
        if samples_digest(rows, places, keys, step - 1, experiment.seed) != int(row["samples"]):
            yield VerifiedPart(
                "samples", "off",
                f"step {step:,} (attempt {row['attempt']}) was fed other samples or random numbers than spec and order "
                "say.",
            )  # fmt: skip
            return
    of = "" if len(chosen) == len(trained) else f" of {len(trained):,}, chosen at random (--seed {seed})"
    yield VerifiedPart(
        "samples", "holds", f"{len(chosen):,} steps{of} were fed the rows and draws that spec and order say."
    )
