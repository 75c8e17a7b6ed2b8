"""Images per second of an import of small pictures in this checkout, beside another checkout.

    python benchmarks/data/import_images.py --other ../before

Small pictures (64x48, half of them JPEG, half PNG) with captions cost little to decode, so that the
work on each file shows: listing, reading, counting what is used. Each checkout imports the same
folder in a fresh process, and the two take turns, in another order every round; a process's start
and its imports of modules are not measured. Ratios are of one round, and the median over the rounds
is what counts. Aim: 0.95 of the other.
"""

import argparse
import io
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image

sys.path.extend(str(Path(__file__).parents[2] / folder) for folder in ("", "tests"))

from benchmarks.rounds import Measured, report

ROOT = Path(__file__).parents[2]
DIFFERENT = 64
IMPORT = """
import sys, time
from pathlib import Path
import ditlab.data.images.image_import  # before the clock starts
from ditlab.data.importing import ImportRequest, run_import
from ditlab.spec.importing import ImagesOptions

source, out = map(Path, sys.argv[1:])
options = ImagesOptions(source=source, resolution=32, patch=4, processes=1, name="set")
begin = time.perf_counter()
(written,) = run_import("images", ImportRequest(out, out, options))
print(len(written.store) / (time.perf_counter() - begin))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--other",
        type=Path,
        default=ROOT,
        help="another checkout; this one shows what noise there is",
    )
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--pictures", type=int, default=10_000)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    trees = {"this": ROOT, "other": arguments.other.resolve()}
    rates: dict[str, list[float]] = {name: [] for name in trees}
    with tempfile.TemporaryDirectory() as folder:
        source = write_pictures(Path(folder) / "pictures", arguments.pictures)
        for number in range(arguments.rounds):
            for name in list(trees)[:: 1 if number % 2 == 0 else -1]:
                rates[name].append(imported(trees[name], source))
    for name, values in rates.items():
        print(
            f"{name:6s} median {statistics.median(values):7.1f} images/s ({min(values):.1f} to "
            f"{max(values):.1f})"
        )
    if arguments.json:
        print(json.dumps(rates))
    ratios = [a / b for a, b in zip(*rates.values(), strict=True)]
    rate = statistics.median(rates["this"])
    report("import, this checkout over the other", ratios, Measured(samples_per_second=rate))


def write_pictures(folder: Path, num: int) -> Path:
    """Write pictures and captions, a thousand a folder."""
    generator = np.random.default_rng(0)
    contents = []
    for number in range(DIFFERENT):
        coarse = generator.integers(0, 256, (6, 8, 3), dtype=np.uint8)
        sink = io.BytesIO()
        Image.fromarray(coarse).resize((64, 48), Image.Resampling.BICUBIC).save(
            sink, "PNG" if number % 2 else "JPEG"
        )
        contents.append(sink.getvalue())
    for number in range(num):
        file = folder / f"{number // 1000:03d}" / f"{number:06d}.{'png' if number % 2 else 'jpg'}"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(contents[number % DIFFERENT])
        file.with_suffix(".txt").write_text(f"picture {number}")
    return folder


def imported(tree: Path, source: Path) -> float:
    """Images per second of an import by a checkout, in a process and a folder of its own."""
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(str(tree / part) for part in ("platform", "models"))
    }
    with tempfile.TemporaryDirectory() as out:
        command = [sys.executable, "-c", IMPORT, str(source), out]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return float(done.stdout)


if __name__ == "__main__":
    main()
