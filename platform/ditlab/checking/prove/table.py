"""Table of a proof's comparisons, in 80 columns."""

from textwrap import wrap

from ditlab.checking.prove.findings import Proof, ProofRow

MOST_COLUMNS = 80
_PHASE, _WHAT = 21, 30


def proof_lines(proof: Proof) -> list[str]:
    """Return the lines of a proof: what was proved, a line for each quantity, the verdict."""
    head = f"  {'phase':<{_PHASE}}{'compared':<{_WHAT}}{'distance':>9}{'bound':>9}  verdict"
    twin = _folded(proof.twin) if proof.twin else []
    title = _folded(f"{proof.spec}: {proof.engine}; {proof.seconds:.0f} s.")
    return [*title, *twin, head, *(_row_line(row) for row in proof.rows()), *_folded(proof.verdict)]


def _row_line(row: ProofRow) -> str:
    """Format a line; of several comparisons the one that is closest to its bound, or furthest beyond."""
    number = f" ({row.num:,})" if row.num > 1 else ""
    what = row.what if len(row.what) + len(number) < _WHAT else f"{row.what[: _WHAT - len(number) - 2]}…"
    verdict = "holds" if row.holds else f"OFF: {row.num_off}"
    bound = "exact" if row.worst.bound == 0 else f"{row.worst.bound:.1e}"
    distance = "0" if row.worst.distance == 0 else f"{row.worst.distance:.1e}"
    return f"  {row.phase:<{_PHASE}}{what + number:<{_WHAT}}{distance:>9}{bound:>9}  {verdict}"


def _folded(text: str) -> list[str]:
    """Break a line between words, so that it fits; a path longer than a line is broken too."""
    return wrap(text, MOST_COLUMNS, subsequent_indent="  ")
