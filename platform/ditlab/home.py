"""Paths of everything that outlives a run: one folder, `DITLAB_HOME` (default `runs/` in the
working directory).

`home.json` in it holds the version of its files' formats, and the folder in which MLflow's database
was filled. The one file elsewhere is the index of its journals (`tracking.index`), in the user's
cache folder.
"""

import json
import os
import re
import shlex
import stat
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ditlab.errors import UserError, cannot_write
from ditlab.storage.files import write_whole
from ditlab.storage.local import refuse_ray_copy, writable_folder
from ditlab.storage.plain_files import parse_json

FORMAT = 2
"""Version of a home's files: journals, `run.json`, receipts, ledgers, checkpoints. A change of any
raises it.
"""
LAST_READER = "0f22711"
"""Last commit that reads homes made before formats had a version."""
_JOB = "RAY_JOB_CONFIG_JSON_ENV_VAR"  # set by Ray for the command of a job
_NODE_JOURNAL = re.compile(r"journal\.node-([1-9][0-9]{0,8})\.jsonl")


def is_ray_job() -> bool:
    """Return True in the process of a Ray job's command: its output is read elsewhere."""
    return _JOB in os.environ


def resolve_user_path(path: str | Path) -> Path:
    """Absolute path of a folder that a person names, its links followed; the home of an unknown
    user stays as written. Raises UserError for links in a circle, and for a name that no file can
    have."""
    try:
        found = Path(os.path.realpath(os.path.expanduser(path)))  # noqa: PTH111 (Path's own raise RuntimeError)
        with suppress(FileNotFoundError, NotADirectoryError, PermissionError):
            found.stat()
    # a circle, a name that is too long; a name with a zero byte
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise UserError(f"{str(path)[:200]!r} is no path ({reason}); correct it.") from None
    return found


def resolve_user_file(path: str | Path) -> Path:
    """As `resolve_user_path`, but for a link in the last part, whose own name tells the kind of
    file: caches of the Hugging Face hub link to files without one."""
    name = Path(path).name
    folder = resolve_user_path(Path(path).parent)
    if name not in ("", "..", "~"):
        return folder / name
    return resolve_user_path(path)


class Below:
    """Path of a file or folder below a home or a run's folder, as an attribute of it."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, owner: Any, kind: type) -> Path:
        return (owner.root if isinstance(owner, Home) else owner.path) / self.name


@dataclass(frozen=True)
class Home:
    """Every path below `DITLAB_HOME`; none is made until `ensure` is called."""

    root: Path

    @classmethod
    def from_environment(cls) -> "Home":
        """The home of the variable `DITLAB_HOME`. Raises UserError where its files are of another
        format, and where Ray would delete them after a job."""
        home = cls.named_by_environment()
        given = ""
        if "DITLAB_HOME" not in os.environ:
            given = " (the default, as DITLAB_HOME is not set)"
        remedy = (
            "name a folder that outlives the job and that all nodes see by its absolute path: "
            "`ditlab submit --home PATH`, or `env DITLAB_HOME=PATH python -m ditlab ...` as "
            "the command of `ray job submit`"
        )
        refuse_ray_copy(home.root, f"DITLAB_HOME={home.root}{given}", remedy)
        return home.check_format()

    @classmethod
    def named_by_environment(cls) -> "Home":
        """The home of the variable `DITLAB_HOME`, of whatever format its files are."""
        return cls(resolve_user_path(os.environ.get("DITLAB_HOME", "runs")))

    mlflow_database = Below("mlflow.db")
    """MLflow's database of runs, unless `tracking.uri` names another."""
    artifacts = Below("artifacts")
    """MLflow's artifact folder."""
    marker = Below("home.json")
    """Version of the home's formats, and the folder in which MLflow's database was filled
    (JSON).
    """
    stores = Below("stores")
    """Arrow stores made by importers, a folder each."""
    classifiers = Below("classifiers")
    """Small classifiers that measure sample quality, a file for each data set: safe to delete."""
    caches = Below("caches")
    """Compiled extensions and the like: safe to delete."""

    @property
    def node_cache(self) -> Path:
        """Copies of remote data: `DITLAB_CACHE`, a folder on the node's own disk, else `caches`.
        Safe to delete.
        """
        own = os.environ.get("DITLAB_CACHE")
        return resolve_user_path(own) if own else self.caches

    def cache_variables(self) -> dict[str, str]:
        """Environment variables that keep compilers' caches below `caches`, in a folder that only
        this user can write. Compilers unpickle files from there. Raises UserError where another
        user can write that folder."""
        compiled = self.caches / f"compiled-{os.geteuid()}"
        is_ours = False
        self.caches.mkdir(parents=True, exist_ok=True)
        compiled.mkdir(mode=0o700, exist_ok=True)
        state = compiled.lstat()
        # NFS may give files that root writes to the user nobody: the owner of a new file is our
        # own.
        with suppress(OSError), tempfile.TemporaryFile(dir=compiled) as probe:
            is_ours = state.st_uid == os.fstat(probe.fileno()).st_uid
        if not stat.S_ISDIR(state.st_mode) or not is_ours or state.st_mode & 0o022:
            raise UserError(
                f"{compiled} can be written by others than you, who could put code there; "
                "remove it."
            )
        return {
            "TORCH_EXTENSIONS_DIR": str(compiled / "torch_extensions"),
            "TORCHINDUCTOR_CACHE_DIR": str(compiled / "inductor"),
            "TRITON_CACHE_DIR": str(compiled / "triton"),
        }

    runs = Below("train")
    """A folder for each run; see `RunFolder`."""

    def run(self, run_id: str) -> "RunFolder":
        """The folder of a run. Raises UserError for an id that leads out of `runs`."""
        if run_id in ("", ".", "..") or "/" in run_id or "\0" in run_id:
            raise UserError(f"run {run_id!r} is no id of a run; `ditlab runs` lists them.")
        return RunFolder(self.runs / run_id)

    def ensure(self) -> "Home":
        """Make the root, with its marker. Raises UserError where it cannot be written or has
        another format.
        """
        remedy = "point DITLAB_HOME at a writable folder"
        writable_folder(self.root, f"DITLAB_HOME={self.root}", remedy)
        try:
            if not self.check_format().marker.exists():
                self.write_marker()
        except OSError as error:
            raise cannot_write(f"DITLAB_HOME={self.root}", error, remedy) from error
        return self

    def check_format(self) -> "Home":
        """Return this home. Raises UserError where its files are of another format than this
        version reads.
        """
        if not self.marker.exists():
            if self.runs.is_dir() and any(path.is_dir() for path in self.runs.glob("[!.]*")):
                raise UserError(
                    f"DITLAB_HOME={self.root} holds runs and no {self.marker.name}: an earlier "
                    f"version made it, and commit {LAST_READER} is the last that reads it; "
                    "check that out, or set DITLAB_HOME to another folder."
                )
        elif (number := self.read_marker().get("format", FORMAT)) != FORMAT:
            raise UserError(
                f"DITLAB_HOME={self.root} has files of format {number}, and this version reads "
                f"format {FORMAT}; use the version of DiTLab that made it, or set DITLAB_HOME "
                "to another folder."
            )
        return self

    def read_marker(self) -> dict[str, Any]:
        """Content of the marker; {} where it is missing or damaged."""
        content = None
        with suppress(OSError, ValueError):
            content = parse_json(self.marker.read_bytes())
        return content if isinstance(content, dict) else {}

    def write_marker(self, **facts: str) -> None:
        """Write the marker: the format, this folder, and further facts. Raises OSError where the
        disk refuses.
        """
        write_whole(
            self.marker,
            json.dumps({"format": FORMAT, "folder": str(self.root), **facts}, indent=1).encode(),
        )

    def former_folder(self) -> Path | None:
        """Folder in which MLflow's database was filled; None where the marker says none."""
        folder = self.read_marker().get("folder")
        return Path(folder) if isinstance(folder, str) else None

    def unsettled(self) -> str:
        """Return why MLflow's database is not of this folder, as `is a copy of /data/runs`; empty
        where it is.
        """
        if not self.marker.exists():
            return ""
        folder = self.former_folder()
        if folder is None:
            return f"has a damaged {self.marker.name}, so that it is not known where it was made"
        if folder != self.root and not folder.is_dir():
            return f"was moved from {folder}"
        if folder != self.root and not folder.samefile(self.root):
            return f"is a copy of {folder}"
        if "aside" in self.read_marker():
            return "has an MLflow database that is only partly filled"
        return ""

    def check_place(self) -> None:
        """Raise UserError for a home that was moved or copied since MLflow's database was
        filled.
        """
        reason = self.unsettled()
        if reason:
            raise UserError(
                f"DITLAB_HOME={self.root} {reason}; run `ditlab runs sync` once, which fills "
                "MLflow again from the runs' journals."
            )


@dataclass(frozen=True)
class RunFolder:
    """The paths of one run, whose id is the folder's name."""

    path: Path

    @property
    def run_id(self) -> str:
        """Id of the run."""
        return self.path.name

    @property
    def resume_command(self) -> str:
        """Command that goes on with the run."""
        return f"ditlab train {shlex.quote(str(self.spec))} --resume {self.run_id}"

    spec = Below("spec.yaml")
    """The resolved YAML."""
    record = Below("run.json")
    """Name, family, spec hash, status, step, as `ditlab runs` lists them (JSON)."""
    journal = Below("journal.jsonl")
    """Every metric, tag and artifact in the order of the events (JSON lines)."""

    def node_journal(self, node: int) -> Path:
        """The journal of one machine of a run on several, by its rank; machine 0 writes the run's
        own, `journal`.
        """
        if node == 0:
            return self.journal
        return self.journal.with_name(f"journal.node-{node}.jsonl")

    def journal_nodes(self) -> list[int]:
        """Ranks of the machines that have a journal in the folder, and 0."""
        found = (
            _NODE_JOURNAL.fullmatch(path.name) for path in self.path.glob("journal.node-*.jsonl")
        )
        return [0, *sorted(int(match[1]) for match in found if match)]

    proof = Below("proof.json")
    """Every comparison of the proof that `ditlab train --prove` made before the run began
    (JSON).
    """
    proof_table = Below("proof.txt")
    """Table of the comparisons in `proof.json`, as text."""
    receipts = Below("receipts")
    """Folder of the receipts: what was fed into each step and what came out."""
    receipt_rows = Below("receipts/steps.bin")
    """Receipts of the steps, 40 bytes each (`ditlab.receipts.records`)."""
    receipt_attempts = Below("receipts/attempts.jsonl")
    """Attempts at the run: workers, versions, code and data of each (JSON lines)."""

    def spec_of(self, spec_hash: str) -> Path:
        """The spec by which attempts of a hash trained, kept where a resume has changed `spec`
        since.
        """
        return self.receipts / f"spec-{spec_hash}.yaml"

    requests = Below("requests")
    """Inbox of the run while it trains (`ditlab.runs.requests`)."""
    evaluations = Below("evaluations")
    """Loss components of each evaluation by held-out sample: `00000200.safetensors`, a tensor a
    component.
    """
    evaluator = Below("evaluator")
    """Inbox of the run's evaluator (`ditlab.training.inbox`), and what its latest process printed,
    `evaluator.log`.
    """
    added_events = Below("events.jsonl")
    """Events that observers of the run have added to those of its journal (JSON lines)."""
    checkpoints = Below("checkpoints")
    """Checkpoints `step-00000200/` and so on, unless `checkpoint.storage` names another place."""
    tokenizer = Below("tokenizer.json")
    """Copy of the data's tokeniser, for a run on text."""
    media = Below("media")
    """Images and tables that the journal points to."""
