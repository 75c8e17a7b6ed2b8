"""Families are found, wherever they lie, and their specs need no torch."""

import subprocess
import sys
import textwrap

from ditlab_models.families import families

IMPORT_PROBE = """
import sys

def check_light(what):
    heavy = [name for name in ("torch", "numpy") if name in sys.modules]
    assert not heavy, (what, heavy)

import ditlab_models.dit.spec
import ditlab_models.unet.spec
check_light("specs")
from ditlab_models.dit.spec import DiTSpec
DiTSpec.model_json_schema()
DiTSpec().batch_fields()
check_light("use of a spec")
from ditlab_models.families import families
assert {"dit", "unet"} <= set(families())
check_light("families")
"""


def test_specs_import_no_torch():
    subprocess.run([sys.executable, "-c", IMPORT_PROBE], check=True)


def test_a_family_in_a_folder_on_the_path_is_found(tmp_path):
    folder = tmp_path / "ditlab_models" / "wave"
    folder.mkdir(parents=True)
    (folder / "family.py").write_text(
        textwrap.dedent("""
        from typing import Literal
        from ditlab_models.dit.family import DiTFamily
        from ditlab_models.dit.spec import DiTSpec

        class WaveSpec(DiTSpec):
            family: Literal["wave"] = "wave"

        class WaveFamily(DiTFamily):
            name = "wave"
            model = WaveSpec

        FAMILY = WaveFamily()
        """)
    )
    probe = "from ditlab_models.families import families; print(','.join(families()))"
    command = f"import sys; sys.path.append({str(tmp_path)!r}); {probe}"
    done = subprocess.run(
        [sys.executable, "-c", command], check=True, capture_output=True, text=True
    )
    assert {"dit", "unet", "wave"} <= set(done.stdout.strip().split(","))


def test_every_family_has_defaults_and_a_schema_with_words():
    for name, family in families().items():
        assert family.name == name
        assert family.model().family == name
        objectives = family.objectives().values()
        for spec in (family.model, *objectives, *map(family.sampling_of, objectives)):
            spec()
            for definition in [
                spec.model_json_schema(),
                *spec.model_json_schema().get("$defs", {}).values(),
            ]:
                for field, schema in definition["properties"].items():
                    assert schema.get("description"), (
                        f"{definition['title']}.{field} has no docstring"
                    )
