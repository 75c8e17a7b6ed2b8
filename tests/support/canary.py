"""Files that betray whoever executes them: what a careless loader unpickles or constructs makes a
folder.
"""

import io
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch


class Canary:
    """Unpickled, it makes the folder `marker`."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str, int, bool]]:
        return os.makedirs, (str(self.marker), 0o755, True)


def plain_pickle(marker: Path) -> bytes:
    return pickle.dumps(Canary(marker))


def torch_zip(marker: Path) -> bytes:
    """Bytes as `torch.save` writes a state."""
    file = io.BytesIO()
    torch.save({"state_dict": Canary(marker)}, file)
    return file.getvalue()


def numpy_array(marker: Path) -> bytes:
    """An .npy of one object."""
    file = io.BytesIO()
    np.save(file, np.array([Canary(marker)], dtype=object), allow_pickle=True)
    return file.getvalue()


def numpy_zip(marker: Path) -> bytes:
    """An .npz of one object."""
    file = io.BytesIO()
    np.savez(file, state=np.array([Canary(marker)], dtype=object))
    return file.getvalue()


def yaml_tag(marker: Path) -> bytes:
    """YAML that PyYAML's unsafe loader executes, and text that is JSON to nobody."""
    return f"name: !!python/object/apply:os.makedirs ['{marker}', 493, true]\n".encode()


def json_string(marker: Path) -> bytes:
    """A pickle in JSON, as jsonpickle has it."""
    reduced = f'[{{"py/function": "os.makedirs"}}, {{"py/tuple": ["{marker}", 493, true]}}]'
    return f'{{"py/reduce": {reduced}}}\n'.encode()


KINDS = {
    "pickle": plain_pickle,
    "torch": torch_zip,
    "npy": numpy_array,
    "npz": numpy_zip,
    "yaml": yaml_tag,
    "json": json_string,
}
