"""Settings of every test process: threads pinned before torch is imported, whole files for each
parallel worker.
"""

import atexit
import os
import shutil
import tempfile
from pathlib import Path

# A disk takes 2 to 5 ms to flush a file, and a tiny training asks for that 60 times: temporary
# files lie in memory where there is much of it.
_memory = Path("/dev/shm")
if _memory.is_dir() and shutil.disk_usage(_memory).free > 2**33:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(_memory))
if os.environ.pop("PYTHONDONTWRITEBYTECODE", ""):
    # Processes that tests start share bytecode outside the checkout: one that imports torch
    # compiles for 0.7 s without.
    os.environ["PYTHONPYCACHEPREFIX"] = tempfile.mkdtemp(prefix="ditlab-bytecode-")
    atexit.register(shutil.rmtree, os.environ["PYTHONPYCACHEPREFIX"], ignore_errors=True)
    _path = [str(Path(__file__).parent / "support" / "bytecode"), os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, _path))
# Networks here are too small for threads to help, and two workers share two cores: a tiny training
# took 3 s on one thread and up to 22 s on two of a busy machine. Set before torch is imported;
# processes that a test starts inherit it.
for _name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[_name] = "1"
# Indexes of the homes of tests are no part of a person's cache; matplotlib's list of fonts is.
_cache = os.environ.get("XDG_CACHE_HOME", "~/.cache")
os.environ.setdefault("MPLCONFIGDIR", os.path.expanduser(f"{_cache}/matplotlib"))  # noqa: PTH111
os.environ["XDG_CACHE_HOME"] = tempfile.mkdtemp(
    prefix="ditlab-cache-", dir=os.environ.get("PYTEST_DEBUG_TEMPROOT")
)
atexit.register(shutil.rmtree, os.environ["XDG_CACHE_HOME"], ignore_errors=True)
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["DEEPSPEED_LOG_LEVEL"] = "error"
# what a command says must not depend on the machine's speed
os.environ["DITLAB_PROGRESS_SECONDS"] = "0"
os.environ["DITLAB_FIGURES"] = "off"  # a run's figures take longer than the runs of tests

import random
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from ditlab.home import Home
from ditlab.tracking import mlflow_connection
from support import databases, garbage
from support.clusters.ray_instance import breaking_family, ray  # noqa: F401
from support.databases import mlflow_template  # noqa: F401
from support.results import results_are_typed  # noqa: F401
from support.small_run import (  # noqa: F401
    blank_canvases,
    blank_pictures,
    ditlab,
    finished,
    home,
    spec,
    with_run,
)

# A script's background job ignores Ctrl-C, and so would every process that it starts: a test that
# sends one would wait.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:  # under nohup
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


ON_RAY = ("tests/ditlab/cluster/workers/", "tests/ditlab/sweeps/test_session.py")
ROOMS = (
    "ditlab_addons/check",
    *(f"ditlab/{room}" for room in ("tracking", "engine", "runs", "sweeps", "cli")),
)
LONGEST = (*ON_RAY, *(f"tests/{room}/" for room in ROOMS))
"""Files that parallel workers begin with, in this order: one that is begun last is waited for."""


@pytest.fixture(scope="module", autouse=True)
def _imports_are_not_collected() -> None:
    garbage.exempt_imports()


@pytest.fixture(scope="session", autouse=True)
def _memory_is_given_back(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[None]:
    """Temporary files in memory, 2 GiB of all tests, go with a session in which none failed; others
    with the next.
    """
    yield
    base = tmp_path_factory.getbasetemp()
    if base.is_relative_to(_memory) and not request.session.testsfailed:
        shutil.rmtree(base, ignore_errors=True)


@pytest.fixture(scope="session", autouse=True)
def _databases_are_copied(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """In this process, a new home's MLflow database is a copy of the template."""

    def copy(path: Path, owner: Home) -> None:
        databases.copy_template(databases.make_template(tmp_path_factory), path, owner)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mlflow_connection, "_make_database", copy)
        yield


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--shuffle",
        type=int,
        metavar="SEED",
        help="run files, and the tests in each, in a random order",
    )


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Import test files without garbage collection between them."""
    with garbage.paused():
        return (yield)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    def place(item: pytest.Item) -> int:
        places = [n for n, each in enumerate(LONGEST) if item.nodeid.startswith(each)]
        return min(places, default=len(LONGEST))

    items.sort(key=place)
    if (seed := config.getoption("--shuffle")) is not None:
        _shuffle(items, random.Random(seed))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Give a worker whole files in their order, and one worker all files that share Ray's
    instance.
    """
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.split("::", 1)[0]
            return "ray" if file.startswith(ON_RAY) else file

    config.option.loadscopereorder = False  # xdist's own order begins with the files of most tests
    return Scheduling(config, log)


def _shuffle(items: list[pytest.Item], generator: random.Random) -> None:
    files: dict[object, list[pytest.Item]] = {}
    for item in items:
        files.setdefault(item.path, []).append(item)
    order = list(files.values())
    generator.shuffle(order)
    for tests in order:
        generator.shuffle(tests)
    items[:] = [item for tests in order for item in tests]
