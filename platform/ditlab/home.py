"""Where everything that outlives a run lies: one folder, `DITLAB_HOME` (default `runs/` in the working directory)."""

import os
import stat
import tempfile
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


def own_folder(path: Path) -> Path:
    """Makes a folder that nobody else can write. Raises UserError where what is there is another one's."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.mkdir(mode=0o700, exist_ok=True)
    state = path.lstat()
    try:
        # NFS may give what root writes to nobody: a file of ours tells which owner is ours.
        with tempfile.TemporaryFile(dir=path) as probe:
            is_ours = state.st_uid == os.fstat(probe.fileno()).st_uid
    except OSError:
        is_ours = False
    if not stat.S_ISDIR(state.st_mode) or not is_ours or state.st_mode & 0o022:
        raise UserError(f"{path} can be written by others than you, who could put code there; remove it.")
    return path


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
    def mlflow_users(self) -> Path:
        """Accounts of the MLflow server, their passwords as hashes."""
        return self.root / "mlflow-users.db"

    @property
    def mlflow_access(self) -> Path:
        """The MLflow server's settings of authentication; they hold no password."""
        return self.root / "mlflow-access.ini"

    @property
    def mlflow_key(self) -> Path:
        """What the MLflow server signs its forms with."""
        return self.root / "mlflow-key"

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

    @property
    def node_cache(self) -> Path:
        """Copies of data that lie elsewhere: `DITLAB_CACHE`, a folder on the node's own disk, else `caches`. Safe to
        delete."""
        own = os.environ.get("DITLAB_CACHE")
        return Path(own).expanduser().resolve() if own else self.caches

    def cache_variables(self) -> dict[str, str]:
        """Environment variables that keep compilers' caches in `caches`, in a folder that this user alone can write:
        compilers load and unpickle what they find there.

        Raises UserError where another one has made that folder.
        """
        compiled = own_folder(self.caches / f"compiled-{os.geteuid()}")
        return {
            "TORCH_EXTENSIONS_DIR": str(compiled / "torch_extensions"),
            "TORCHINDUCTOR_CACHE_DIR": str(compiled / "inductor"),
            "TRITON_CACHE_DIR": str(compiled / "triton"),
        }

    @property
    def runs(self) -> Path:
        """A folder per training run; see `RunFolder`."""
        return self.root / "train"

    def run(self, run_id: str) -> "RunFolder":
        """Raises UserError for a name that leads out of `runs`."""
        if run_id in ("", ".", "..") or "/" in run_id or "\0" in run_id:
            raise UserError(f"run {run_id!r} is no id of a run; `ditlab runs` lists them.")
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

    def node_journal(self, node: int) -> Path:
        """The journal of one machine of a run on several, by its rank; machine 0 writes the run's own, `journal`."""
        return self.journal if node == 0 else self.journal.with_name(f"journal.node-{node}.jsonl")

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
