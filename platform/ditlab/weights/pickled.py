"""Tensors of .pt, .pth, .bin and .ckpt files, by torch's weights-only reader: the one file that
unpickles.

That reader builds tensors and plain containers, and refuses every other class or function before it
is called. Where it refuses, the file is not read: there is no other way in.
"""

from __future__ import annotations

import argparse
import warnings
import zipfile
from pathlib import Path
from typing import Any

import torch

from ditlab.errors import UserError, first_line
from ditlab.storage.plain_files import open_regular_file

SUFFIXES = (".pt", ".pth", ".bin", ".ckpt")


def read_pickled(path: Path, option: str) -> Any:
    """Return what a file holds, tensors on the CPU; arguments of a training script
    (`argparse.Namespace`) are data.

    `option` names the file in messages. Raises UserError for a file that cannot be read, or holds
    anything else.
    """
    try:
        open_regular_file(path, follow=True).close()
        with torch.serialization.safe_globals([argparse.Namespace]), warnings.catch_warnings():
            # of the pickle's protocol: what cannot be read is an error below
            warnings.simplefilter("ignore")
            return torch.load(
                path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path)
            )
    except OSError as error:
        raise UserError(
            f"{option}: {path.name} cannot be read ({first_line(error)}); name a file of weights."
        ) from None
    except Exception as error:  # whatever a damaged or hostile file makes the reader raise
        raise UserError(
            f"{option}: {path.name} holds more than tensors, or is damaged ({_reason(error)}), "
            "and is not read; where you trust it, make safetensors of it by three lines of "
            "Python: `import torch; from safetensors.torch import save_file`, `content = "
            f"torch.load({path.name!r}, map_location='cpu', weights_only=False)`, "
            "`save_file({name: each.contiguous() for name, each in content['model'].items()}, "
            f"{path.with_suffix('.safetensors').name!r})` (or another key than 'model')."
        ) from None


def _reason(error: Exception) -> str:
    """Return the reader's reason from among its advice."""
    reasons = [
        line.strip()
        for line in str(error).partition("WeightsUnpickler error:")[2].splitlines()
        if line.strip()
    ]
    if reasons:
        return reasons[0].split(". ")[0].rstrip(".")
    return first_line(error)
