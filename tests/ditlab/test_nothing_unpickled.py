"""Files that others may have written are never unpickled, nor loaded as code."""

import ast
import os
import pickle
from argparse import Namespace
from pathlib import Path

import pytest

from ditlab.errors import UserError
from ditlab.home import Home
from support.damage import refused

ROOT = Path(__file__).parents[2]
# Modules that unpickle, and calls that do: where one is needed, its file must say why nobody else
# can have written it.
MODULES = {"pickle", "cloudpickle", "dill", "joblib", "shelve", "marshal", "ray.cloudpickle"}
CALLS = {
    "torch.load",
    "np.load",
    "numpy.load",
    "Tuner.restore",
    "tune.Tuner.restore",
    "pd.read_pickle",
    "yaml.load",
    "yaml.unsafe_load",
    "mlflow.pytorch.load_model",
    "mlflow.pyfunc.load_model",
}


# Tensors alone, by torch's weights-only reader: in one file, and never without that word.
WEIGHTS = ROOT / "platform/ditlab/weights/pickled.py"
# Plain arrays alone, as ADM writes statistics and samples.
ARRAYS = ROOT / "platform/ditlab_addons/figures/images/published.py"


def sources():
    return sorted(path for part in ("platform", "models") for path in (ROOT / part).rglob("*.py"))


def test_no_source_unpickles():
    files = sources()
    assert len(files) > 100
    for path in files:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                assert not MODULES & {name.name for name in node.names}, path
            elif isinstance(node, ast.ImportFrom):
                assert node.module not in MODULES, path
            elif isinstance(node, ast.Call):
                called = ast.unparse(node.func)
                if path == WEIGHTS and called == "torch.load":
                    assert "weights_only=True" in [ast.unparse(each) for each in node.keywords]
                elif path == ARRAYS and called == "np.load":
                    assert "allow_pickle=False" in [ast.unparse(each) for each in node.keywords]
                else:
                    assert called not in CALLS, path


class Planted:
    """Makes a file when it is unpickled."""

    def __init__(self, file):
        self.file = str(file)

    def __reduce__(self):
        return os.open, (self.file, os.O_CREAT)


@pytest.mark.parametrize(
    "name", ["model.pt", "model.bin", "model.ckpt", "model.safetensors", "nested.pth"]
)
def test_weights_with_pickles_are_refused(tmp_path, name):
    """In any format's place: alone, in a zip as torch writes it, in the arguments beside real
    tensors.
    """
    import torch

    from ditlab.weights.published import PublishedWeights

    file, touched = tmp_path / name, tmp_path / "touched"
    weights = {"region_embed.embed.weight": torch.zeros(2, 2)}
    if name == "model.pt":
        torch.save(Planted(touched), file)
    elif name == "nested.pth":
        torch.save({"model": weights, "args": Namespace(lr=Planted(touched))}, file)
    else:
        file.write_bytes(pickle.dumps(Planted(touched)))
    with pytest.raises(UserError) as caught:
        PublishedWeights.open(str(file), "PATH", Home(tmp_path))
    assert not touched.exists()
    assert str(caught.value).count("\n") == 0
    if not name.endswith("safetensors"):
        assert "make safetensors of it by three lines of Python" in str(caught.value)


def test_compilers_caches_are_the_users_alone(tmp_path):
    home = Home(tmp_path)
    folders = {Path(value).parent for value in home.cache_variables().values()}
    (own,) = folders
    assert own.is_relative_to(home.caches) and own.stat().st_mode & 0o777 == 0o700
    assert {Path(value).parent for value in home.cache_variables().values()} == folders
    own.chmod(0o777)
    with refused("can be written by others than you"):
        home.cache_variables()


@pytest.mark.skipif(os.geteuid() != 0, reason="gives files away, which root alone may do")
def test_compilers_caches_of_another_user_are_refused(tmp_path):
    home = Home(tmp_path)
    folder = Path(next(iter(home.cache_variables().values()))).parent
    os.chown(folder, 12345, 12345)
    with refused("can be written by others than you"):
        home.cache_variables()
    folder.rmdir()
    folder.symlink_to(tmp_path)
    with refused("can be written by others than you"):
        home.cache_variables()
