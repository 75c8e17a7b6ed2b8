"""Attention among the documents of a row (`data.packing`), as far as specs decide on it."""

from denoisers.contract import ModelSpec, Spec
from ditlab.spec.composition.mixture import MixtureData
from ditlab.spec.data import ArrowData, Packing, TextData


def packing_of(data: Spec) -> Packing:
    """Return the packing of an experiment's data; of parts, that of all. Raises ValueError for parts that differ."""
    if not isinstance(data, MixtureData):
        return data.packing if isinstance(data, ArrowData | TextData) else "joined"
    found = {name: packing_of(data.parts[name]) for name in data.names}
    masked, joined = ([name for name in data.names if found[name] == kind] for kind in ("masked", "joined"))
    if masked and joined:
        raise ValueError(
            f"data.parts.{masked[0]}.packing=masked and data.parts.{joined[0]}.packing=joined cannot be mixed, as one "
            "network reads both; set the packing of all parts to one of them."
        )
    return "masked" if masked else "joined"


def check_packing(data: Spec, model: ModelSpec) -> None:
    """Raise ValueError where the model cannot keep attention within documents and the data ask for it."""
    if packing_of(data) == "masked" and not model.masks_documents:
        raise ValueError(
            f"data.packing=masked keeps attention within documents of tokens, and model.family={model.family} reads no "
            "documents; set data.packing to joined, or train a model of tokens such as dlm."
        )
