"""Checkpoints of encoders as transformers saves them: found, fetched, checked, digested, opened as
frozen networks.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from ditlab.errors import UserError, first_line
from ditlab.home import Home, resolve_user_path
from ditlab.spec.encoders import Encoders
from ditlab.storage.plain_files import MIB, open_regular_file, read_plain
from ditlab.storage.remote import NotFetched, fetch_repository
from ditlab.weights.files import read_index

CheckpointPart = Literal["weights", "tokenizer"]

CONFIG = "config.json"
WEIGHTS = "model.safetensors"
WEIGHTS_INDEX = "model.safetensors.index.json"
TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt")
"""Files of a tokeniser, one of which is enough."""
MAX_TEXT_FILE = 256 * MIB
"""Bytes of a configuration, a vocabulary or an index of weights."""
FETCHED = ("*.json", "*.safetensors", "*.txt", "*.model")
"""Files that are fetched of a repository: no pickled weights, which could run code."""
PIECES = 64
PIECE = 64 * 1024
"""Pieces of each file of weights that are read, and their bytes: 4 MiB of a file of any size."""


@dataclass(frozen=True)
class EncoderCheckpoint:
    """Folder with all files that an encoder needs."""

    folder: Path
    name: str
    """Setting that names it, for messages: `encoders.text=models/qwen3`."""

    @classmethod
    def find(
        cls,
        place: str,
        option: str,
        needs: tuple[CheckpointPart, ...],
        downloads: Path | None = None,
    ) -> EncoderCheckpoint:
        """Find the checkpoint at a folder, or of a name on the Hugging Face hub, from the hub's own
        cache or fetched.

        `option` is the setting that holds `place`: `encoders.text`. Files are fetched to
        `downloads` (None: below DITLAB_HOME's caches). Raises UserError for one that is not there,
        cannot be fetched, or lacks a file.
        """
        folder = _local_folder(place, None)
        if folder is None:
            try:
                folder = fetch_repository(
                    place, FETCHED, downloads or Home.from_environment().caches / "encoders"
                )
            except NotFetched as error:
                raise UserError(
                    f"{option}={place} is no folder here, and the Hugging Face hub does not "
                    f"give it ({error}); check the name, or fetch it on a machine that reaches "
                    "the hub and name its folder."
                ) from error
        found = cls(folder, f"{option}={place}")
        found._check_files(needs)
        return found

    @classmethod
    def here(cls, place: str, option: str, downloads: Path | None) -> EncoderCheckpoint | None:
        """Find a configuration here or fetched; None where there is none. Raises UserError for one
        not to be read.
        """
        folder = _local_folder(
            place, None, downloads or Home.from_environment().caches / "encoders"
        )
        if folder is None or not (folder / CONFIG).exists():
            return None
        found = cls(folder, f"{option}={place}")
        found._check_files(())
        return found

    def _check_files(self, needs: tuple[CheckpointPart, ...]) -> None:
        """Raise UserError for a missing file, or one that is no regular file, which transformers
        would wait for.
        """
        paths = set(chain.from_iterable(map(self.folder.glob, FETCHED)))
        for path in sorted(paths):
            limit = None if path.suffix == ".safetensors" else MAX_TEXT_FILE
            try:
                open_regular_file(path, limit, follow=True).close()
            except OSError as error:
                raise self._unreadable(path, first_line(error)) from None
        missing = []
        if not (self.folder / CONFIG).exists():
            missing.append(CONFIG)
        if "weights" in needs and not (self.folder / WEIGHTS).exists():
            missing += self._missing_shards()
        if "tokenizer" in needs and not any((self.folder / name).exists() for name in TOKENIZERS):
            missing.append(f"tokeniser ({TOKENIZERS[0]})")
        if missing:
            raise UserError(
                f"{self.name} holds no {' and no '.join(missing)}, so it is no whole "
                "checkpoint; name a folder that transformers' save_pretrained wrote (model and "
                "tokeniser), or fetch the missing files."
            )

    def _missing_shards(self) -> list[str]:
        """Return the weights' shards that are not there, by their index. Raises UserError for a
        damaged index.
        """
        index = self.folder / WEIGHTS_INDEX
        if not index.exists():
            return [f"weights ({WEIGHTS})"]
        try:
            files = read_index(index)
        except (OSError, ValueError) as error:
            raise self._unreadable(index, first_line(error)) from None
        names = sorted(set(files.values()))
        return [name for name in names if not (self.folder / name).exists()]

    def _unreadable(self, path: Path, reason: str) -> UserError:
        return UserError(
            f"{self.name}: {path.name} cannot be read ({reason}); name the folder of a whole "
            "checkpoint."
        )

    def config(self) -> Any:
        """Read the network's configuration. Raises UserError for one that transformers does not
        support.
        """
        with self.reading() as transformers:
            return transformers.AutoConfig.from_pretrained(self.folder, local_files_only=True)

    def tokenizer(self) -> Any:
        """Read the tokeniser. Raises UserError for one that transformers does not support."""
        with self.reading() as transformers:
            return transformers.AutoTokenizer.from_pretrained(self.folder, local_files_only=True)

    def network(
        self, dtype: torch.dtype, device: torch.device | str, auto_class: str = "AutoModel"
    ) -> nn.Module:
        """Return the frozen network, in evaluation mode: without a head, unless transformers'
        `auto_class` gives it one. Raises UserError for damaged weights."""
        with self.reading() as transformers:
            network, loaded = getattr(transformers, auto_class).from_pretrained(
                self.folder,
                dtype=dtype,
                attn_implementation="sdpa",
                use_safetensors=True,
                local_files_only=True,
                output_loading_info=True,
            )
        if loaded["missing_keys"]:
            names = sorted(loaded["missing_keys"])
            raise UserError(
                f"{self.name} lacks weights of its network ({names[0]}, {len(names)} in all); "
                "name the folder of a whole checkpoint."
            )
        frozen: nn.Module = network.requires_grad_(False).eval().to(device)
        return frozen

    @contextmanager
    def reading(self) -> Iterator[Any]:
        """Give transformers, without the progress bars that would appear within a run's own;
        translate its errors.
        """
        transformers = library()
        logging = transformers.utils.logging
        was_on = logging.is_progress_bar_enabled()
        logging.disable_progress_bar()
        try:
            yield transformers
        # a wrong type in a configuration raises whatever its network's constructor raises
        except Exception as error:
            raise UserError(
                f"{self.name} cannot be read by transformers {transformers.__version__} "
                f"({first_line(error)}); name the folder of a whole checkpoint that this "
                "version reads."
            ) from error
        finally:
            if was_on:
                logging.enable_progress_bar()


def library() -> Any:
    """Import transformers. Raises UserError where it is not installed."""
    try:
        import transformers
    except ImportError as error:
        raise UserError(
            "encoders of captions and images need the library transformers, which is not "
            "installed; `pip install 'ditlab[encoders]'` brings it."
        ) from error
    return transformers


def _local_folder(place: str, *caches: Path | None) -> Path | None:
    """Return a folder, or that of a repository's files in one of the hub's `caches` (None: its
    own).
    """
    folder = resolve_user_path(place)
    if folder.is_dir():
        return folder
    library()  # its absence is reported first, and it brings the hub's client
    for cache in caches:
        with suppress(NotFetched):
            return fetch_repository(place, FETCHED, cache, is_local=True)
    return None


def encoder_digest(place: str | None, precision: str, downloads: Path | None = None) -> str:
    """Return a digest of the encoder at a folder or of a hub's name, wherever it lies; empty for no
    encoder.

    It goes over the configuration, and the size and evenly spread pieces of each file of weights; a
    hub's name stands for itself where nothing is fetched yet. Raises UserError for files that
    cannot be read.
    """
    if place is None:
        return ""
    found = EncoderCheckpoint.here(place, "encoders", downloads)
    digest = hashlib.sha256(precision.encode())
    if found is None:
        digest.update(place.encode())
        return digest.hexdigest()
    digest.update(read_plain(found.folder / CONFIG, MAX_TEXT_FILE, follow=True))
    for path in sorted(found.folder.glob("*.safetensors")):
        digest.update(path.name.encode())
        with open_regular_file(path, None, follow=True) as file:
            size = os.fstat(file.fileno()).st_size
            digest.update(size.to_bytes(8, "little"))
            last = max(0, size - PIECE)
            for start in sorted({last * number // (PIECES - 1) for number in range(PIECES)}):
                file.seek(start)
                digest.update(file.read(PIECE))
    return digest.hexdigest()


def folder_digests(encoders: Encoders) -> dict[str, str]:
    """Return the digest of each encoder that lies in a folder, by its kind. Raises UserError as
    `encoder_digest`.
    """
    precisions = {"text": encoders.precision, "image": encoders.precision, "autoencoder": ""}
    found = {}
    for kind, precision in precisions.items():
        place = getattr(encoders, kind)
        if place and Path(place).is_dir():
            found[kind] = encoder_digest(place, precision)
    return found


def encoder_difference(encoders: Encoders, recorded: Mapping[str, str]) -> str:
    """Return in a sentence which encoder is another than a run recorded; empty where none is."""
    for kind, digest in folder_digests(encoders).items():
        theirs = recorded.get(kind, digest)
        if theirs != digest:
            return (
                f"encoders.{kind}={getattr(encoders, kind)} holds an encoder of digest "
                f"{digest[:12]}, and the run was trained with {theirs[:12]}"
            )
    return ""
