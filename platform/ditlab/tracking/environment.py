"""Environment of a run: versions of packages, and the git state of the working directory. Imports
no mlflow.
"""

import importlib.metadata
import platform
import re
import subprocess
import sys


def environment() -> str:
    """Python, platform, git commit and packages with versions, as text: nothing that identifies a
    machine or person.
    """
    lines = [
        f"python {sys.version.split()[0]} ({platform.python_implementation()})",
        f"platform {platform.system()} {platform.release()} {platform.machine()}",
        f"git {git_state()}",
        "",
    ]
    packages = set()
    for distribution in importlib.metadata.distributions():
        # the head of its metadata: the whole is parsed twenty times as slowly
        text = distribution.read_text("METADATA") or distribution.read_text("PKG-INFO") or ""
        fields = dict(
            re.findall(r"^(Name|Version):[ \t]*(\S+)", text.partition("\n\n")[0], re.MULTILINE)
        )
        if len(fields) == 2:
            packages.add((fields["Name"], fields["Version"]))
    lines += [
        f"{name}=={version}"
        for name, version in sorted(packages, key=lambda package: package[0].lower())
    ]
    return "\n".join(lines) + "\n"


def git_state() -> str:
    """`<commit>` or `<commit> (dirty)` of the working directory; `none` outside a repository or
    without git.
    """
    commit = _git("rev-parse", "HEAD")
    if not commit:
        return "none"
    if _git("status", "--porcelain", "--untracked-files=no"):
        return f"{commit} (dirty)"
    return commit


def _git(*arguments: str) -> str:
    try:
        done = subprocess.run(
            ["git", *arguments],
            capture_output=True,
            encoding="utf-8",  # whatever the locale says
            errors="replace",
            timeout=10,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    if done.returncode:
        return ""
    return done.stdout.strip()


def source_tags() -> dict[str, str]:
    """Tags for the git commit, MLflow's own among them; none where the working directory lies in no
    repository.
    """
    state = git_state()
    if state == "none":
        return {}
    return {"mlflow.source.git.commit": state.split()[0], "ditlab.git": state}
