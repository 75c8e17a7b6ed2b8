"""Receipts of a run: rows, attempts, and the chain that leads to each kept checkpoint."""

from collections.abc import Iterator

from ditlab.analysis.opened_run import OpenedRun
from ditlab.checking.verify.chain_walk import walk_chain
from ditlab.checking.verify.checkpoint_files import KeptCheckpoints
from ditlab.checking.verify.findings import VerifiedPart
from ditlab.receipts.reading import Receipts

PART = "receipts"
NAMED = 3
"""Faults that are named one by one."""


def check_chain(run: OpenedRun, receipts: Receipts, kept: KeptCheckpoints) -> Iterator[VerifiedPart]:
    """Compute the chain of receipts anew, and compare its head at each checkpoint with the manifest's."""
    recorded = {step: manifest.receipt for step, manifest in kept.manifests.items() if "chain" in manifest.receipt}
    walk = walk_chain(receipts, recorded)
    faults = [receipts.damage] if receipts.damage else []
    faults += walk.faults
    for step, receipt in recorded.items():
        heads, head = walk.heads.get(step, {}), receipt["chain"]
        if not heads:
            faults.append(f"no rows lead to checkpoint {step:,}, whose chain is {head[:12]}")
        elif head not in heads:
            faults.append(
                f"checkpoint {step:,} has the chain {head[:12]}, and the receipts up to there give "
                f"{list(heads)[-1][:12]}: one of the two was altered"
            )
        elif receipt.get("since") != str(heads[head]):
            faults.append(
                f"checkpoint {step:,} counts its chain from step {receipt.get('since')}, and the receipts from "
                f"{heads[head]:,}"
            )
    for fault in faults[:NAMED]:
        yield VerifiedPart(PART, "off", f"{fault}; bring {run.folder.receipts} back from a copy.")
    if len(faults) > NAMED:
        yield VerifiedPart(PART, "off", f"{len(faults) - NAMED} more places are out of order.")
    if not faults and recorded:
        first = min(walk.heads[step][receipt["chain"]] for step, receipt in recorded.items())
        begin = f" They begin after step {first:,}: nothing vouches for what came before." if first else ""
        num = len(receipts.attempts)
        yield VerifiedPart(
            PART, "holds",
            f"{len(receipts.steps):,} steps in {num} attempt{'s' if num > 1 else ''}, {len(receipts.rows):,} rows: the "
            f"chain leads to {len(recorded)} checkpoint{'s' if len(recorded) > 1 else ''}.{begin}",
        )  # fmt: skip
    elif not faults:
        yield VerifiedPart(PART, "not checked", "no kept checkpoint names a chain that they would lead to.")
    if without := [step for step in kept.manifests if step not in recorded]:
        yield VerifiedPart(
            PART, "not checked", f"checkpoint {without[0]:,} was written without receipts, by an earlier version."
        )
