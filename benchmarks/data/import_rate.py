"""Pictures a second of `ditlab data import images` with one and two processes, beside a plain loop
of the same work.

    python benchmarks/data/import_rate.py [--rounds N] [--seconds S]

Photographs of 1024x768 pixels (JPEG, a few dozen different ones under many names) with captions are
imported at 256 pixels. The loop (`plain/images.py`) decodes and scales with Pillow, and writes one
array; an import also hashes, measures and checks. Each side is a command of its own, its start
included, and takes its turn in every round.
"""

import argparse
import io
import os
import shutil
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

import numpy as np
from PIL import Image

sys.path.extend(str(Path(__file__).parents[2] / folder) for folder in ("", "tests"))

from benchmarks.rounds import Measured, Timed, report_beside, timed

HEIGHT, WIDTH, RESOLUTION, DIFFERENT = 768, 1024, 256, 48
SIZE = ("256", "192")
"""Width and height of a photograph in the store."""
PLAIN = Path(__file__).parents[1] / "plain" / "images.py"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument(
        "--seconds", type=float, default=60.0, help="work of the plain loop in a round"
    )
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        measure(Path(folder), arguments.rounds, arguments.seconds)


def measure(folder: Path, rounds: int, seconds: float) -> None:
    """Let the loop and imports take turns, and report their rows."""
    source = folder / "photographs"
    source.mkdir()
    contents = [photograph(seed) for seed in range(DIFFERENT)]
    fill(source, contents, 2 * DIFFERENT)
    plain = loop(folder, source)
    least = min(timed(partial(run, plain)).seconds for _ in range(2))
    num = max(2 * DIFFERENT, round(2 * DIFFERENT * seconds / least))
    fill(source, contents, num)
    sides: dict[str, list[str]] = {
        "loop": plain,
        "one": imported(source, 1),
        "two": imported(source, 2),
    }
    took: dict[str, list[Timed]] = {name: [] for name in sides}
    for number in range(rounds):
        for name in list(sides)[:: 1 - 2 * (number % 2)]:
            took[name].append(timed(partial(run, sides[name], folder / "home")))
            shutil.rmtree(folder / "home", ignore_errors=True)
    for name, processes, least_rate in (("one", "one process", 0.9), ("two", "two processes", 1.6)):
        rate = num / sorted(each.seconds for each in took[name])[rounds // 2]
        report_beside(
            f"import, {processes}",
            "a plain loop of one process",
            took[name],
            took["loop"],
            at_least=least_rate,
            measured=Measured(samples_per_second=rate),
        )


def loop(folder: Path, source: Path) -> list[str]:
    return [sys.executable, str(PLAIN), str(source), str(folder / "plain.npy"), *SIZE]


def imported(source: Path, processes: int) -> list[str]:
    words = [
        "--source",
        str(source),
        "--resolution",
        str(RESOLUTION),
        "--name",
        "set",
        "--processes",
        str(processes),
    ]
    return [sys.executable, "-m", "ditlab", "data", "import", "images", *words]


def run(command: list[str], home: Path = Path("home")) -> None:
    environment = {**os.environ, "DITLAB_HOME": str(home)}
    subprocess.run(
        command, check=True, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )


def fill(source: Path, contents: list[bytes], num: int) -> None:
    """Write so many photographs with captions."""
    for number in range(num):
        (source / f"{number:06d}.jpg").write_bytes(contents[number % len(contents)])
        (source / f"{number:06d}.txt").write_text(f"photograph {number}")


def photograph(seed: int) -> bytes:
    """A JPEG of slopes and noise at two scales, of about the size that cameras' have."""
    generator = np.random.default_rng(seed)
    coarse = generator.integers(0, 200, (HEIGHT // 32, WIDTH // 32, 3), dtype=np.uint8)
    picture = Image.fromarray(coarse).resize((WIDTH, HEIGHT), Image.Resampling.BICUBIC)
    noise = generator.integers(0, 40, (HEIGHT, WIDTH, 3), dtype=np.uint8)
    sink = io.BytesIO()
    Image.fromarray(np.asarray(picture) + noise).save(sink, "JPEG", quality=85)
    return sink.getvalue()


if __name__ == "__main__":
    main()
