"""Held-out metrics of a view as the training measures them."""

from ditlab.progress import ignore_progress
from ditlab.training.evaluation import held_out_sums, summary_of


def held_out_metrics(network, objective, *arguments, by_sample=None):
    """The objective's metrics by name, of what `held_out_sums` adds up."""
    values = {} if by_sample is None else by_sample
    return summary_of(
        held_out_sums(network, objective, *arguments, ignore_progress, values), objective
    )
