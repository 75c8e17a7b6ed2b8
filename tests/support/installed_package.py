"""Packages as pip installs them, written by a test: modules beside a `.dist-info` folder with entry
points.
"""

import tomllib
from collections.abc import Mapping
from pathlib import Path


def install(site: Path, files: Mapping[str, str]) -> None:
    """Write a package's modules into a folder of the Python path, and what importlib.metadata reads
    of it.

    `files` are texts by path, `pyproject.toml` among them.
    """
    project = tomllib.loads(files["pyproject.toml"])["project"]
    for name, text in files.items():
        if name.endswith(".py"):
            path = site / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    facts = site / f"{project['name']}-{project['version']}.dist-info"
    facts.mkdir(parents=True)
    (facts / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    )
    groups = project.get("entry-points", {}).items()
    sections = [
        f"[{group}]\n" + "".join(f"{name} = {at}\n" for name, at in points.items())
        for group, points in groups
    ]
    (facts / "entry_points.txt").write_text("\n".join(sections))
