"""Where everything that outlives a run lies: one folder, `DITLAB_HOME` (default `runs/` in the working directory)."""

import os
from dataclasses import dataclass
from pathlib import Path

from ditlab.errors import UserError


def writable_folder(path: Path, knob: str, remedy: str) -> Path:
    """Makes a folder and proves that it can be written into. Raises UserError that names the knob where it cannot."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        probe = path / f".probe-{os.getpid()}"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise UserError(f"{knob} cannot be written ({error.strerror}); {remedy}.") from error
    return path


def sync_folder(path: Path) -> None:
    """Makes what was created, renamed or deleted in a folder durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@dataclass(frozen=True)
class Home:
    """Names every path below `DITLAB_HOME`; makes none of them until `ensure` is called."""

    root: Path

    @classmethod
    def from_environment(cls) -> "Home":
        return cls(Path(os.environ.get("DITLAB_HOME", "runs")).expanduser().resolve())

    @property
    def mlflow_database(self) -> Path:
        return self.root / "mlflow.db"

    @property
    def artifacts(self) -> Path:
        """MLflow's artifact folder."""
        return self.root / "artifacts"

    @property
    def stores(self) -> Path:
        """Arrow stores made by importers, a folder each."""
        return self.root / "stores"

    @property
    def classifiers(self) -> Path:
        """Small classifiers that sample quality is measured by, a folder a data set: safe to delete."""
        return self.root / "classifiers"

    @property
    def caches(self) -> Path:
        """Compiled extensions and the like: safe to delete."""
        return self.root / "caches"

    def cache_variables(self) -> dict[str, str]:
        """Environment variables that keep compilers' caches in `caches`."""
        return {
            "TORCH_EXTENSIONS_DIR": str(self.caches / "torch_extensions"),
            "TORCHINDUCTOR_CACHE_DIR": str(self.caches / "inductor"),
            "TRITON_CACHE_DIR": str(self.caches / "triton"),
        }

    @property
    def runs(self) -> Path:
        """A folder per training run; see `RunFolder`."""
        return self.root / "train"

    def run(self, run_id: str) -> "RunFolder":
        return RunFolder(self.runs / run_id)

    def ensure(self) -> "Home":
        """Make the root. Raises UserError where it cannot be written."""
        writable_folder(self.root, f"DITLAB_HOME={self.root}", "point DITLAB_HOME at a writable folder")
        return self


@dataclass(frozen=True)
class RunFolder:
    """The paths of one run. The folder's name is the run's id."""

    path: Path

    @property
    def run_id(self) -> str:
        return self.path.name

    @property
    def spec(self) -> Path:
        """The resolved YAML."""
        return self.path / "spec.yaml"

    @property
    def record(self) -> Path:
        """Name, family, spec hash, status, step: what `ditlab runs` lists (JSON)."""
        return self.path / "run.json"

    @property
    def journal(self) -> Path:
        """Every metric, tag and artifact in the order it happened (JSON lines)."""
        return self.path / "journal.jsonl"

    @property
    def checkpoints(self) -> Path:
        """`step-00000200/` and so on, unless `checkpoint.storage` names another place."""
        return self.path / "checkpoints"

    @property
    def tokenizer(self) -> Path:
        """Of a run on text: the tokeniser of its data, as they had it."""
        return self.path / "tokenizer.json"

    @property
    def media(self) -> Path:
        """Pictures and tables that the journal points to."""
        return self.path / "media"
