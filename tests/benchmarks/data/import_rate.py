"""Images per second of an import beside a plain loop of the same decoding and scaling, and on two cores of Ray.

    python tests/benchmarks/data/import_rate.py

Photographs of 1024x768 pixels (JPEG, a few dozen different ones under many names) with captions are imported at 256
pixels: in this process, and by Ray Data on two cores of a Ray instance that is up before. The plain loop decodes and
scales with Pillow, as an import does, and keeps nothing. The three take turns, in another order every round; ratios are
of one round, and the median over the rounds is what counts. Aim: 0.8 of the plain loop on one core, and 1.5 times that
on two where the work takes a minute. Each import hashes, measures and writes all its pixels to a fresh folder.
Seen on two virtual cores without other work: 0.81 on one core and 1.66 times that on two (one round of 40 s).
"""

import argparse
import io
import json
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image

sys.path.append(str(Path(__file__).parents[2]))

from benchmarks.rounds import Measured, report
from ditlab.cluster.imports import RayExecutor
from ditlab.cluster.session import ray_session
from ditlab.data.images.image_import import import_images
from ditlab.data.import_blocks import BlockExecutor, ProcessExecutor
from ditlab.data.importing import ImportRequest
from ditlab.spec.importing import ImagesOptions

HEIGHT, WIDTH, RESOLUTION, DIFFERENT = 768, 1024, 256, 48


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=60.0, help="work of the plain loop in a round")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, ray_session(None, 2):
        rates = measure(Path(folder), arguments.rounds, arguments.seconds, RayExecutor())
    result = summarise(rates)
    for name, values in rates.items():
        print(f"{name:24s} median {statistics.median(values):7.1f} images/s", end="")
        print(f"   (rounds {min(values):.1f} to {max(values):.1f})")
    loop, one, two = rates.values()
    report("import, two cores over one", [a / b for a, b in zip(two, one, strict=True)])
    report("import over a plain loop", [a / b for a, b in zip(one, loop, strict=True)],
           Measured(samples_per_second=statistics.median(one)))  # fmt: skip
    if arguments.json:
        print(json.dumps(result))


def measure(folder: Path, rounds: int, seconds: float, ray: BlockExecutor) -> dict[str, list[float]]:
    """Images per second by variant, one figure a round."""
    contents = [photograph(seed) for seed in range(DIFFERENT)]
    begin = time.perf_counter()
    for content in contents:
        plain(io.BytesIO(content))
    num = max(2 * DIFFERENT, round(seconds * DIFFERENT / (time.perf_counter() - begin)))
    source = folder / "photographs"
    source.mkdir()
    files = [source / f"{number:06d}.jpg" for number in range(num)]
    for number, file in enumerate(files):
        file.write_bytes(contents[number % DIFFERENT])
        file.with_suffix(".txt").write_text(f"photograph {number}")

    def plain_loop() -> None:
        for file in files:
            with file.open("rb") as content:
                plain(content)

    def imported(executor: BlockExecutor) -> Callable[[], None]:
        def run() -> None:
            options = ImagesOptions(source=source, resolution=RESOLUTION, name="set")
            (written,) = import_images(ImportRequest(folder / "stores", folder, options, executor=executor))
            assert len(written.store) == num

        return run

    variants = {
        "plain loop": plain_loop, "import, one core": imported(ProcessExecutor(1)), "import, two on Ray": imported(ray),
    }  # fmt: skip
    rates: dict[str, list[float]] = {name: [] for name in variants}
    for number in range(rounds):
        for name in list(variants)[:: 1 if number % 2 == 0 else -1]:
            begin = time.perf_counter()
            variants[name]()
            rates[name].append(num / (time.perf_counter() - begin))
            shutil.rmtree(folder / "stores", ignore_errors=True)
    return rates


def plain(content: io.BufferedIOBase) -> np.ndarray:
    """Decode and scale one photograph, as a loop of a few lines would."""
    with Image.open(content) as image:
        image.draft(None, (WIDTH // 2, HEIGHT // 2))  # still twice as large as needed
        upright = image.convert("RGB")
    return np.asarray(upright.resize((WIDTH // 4, HEIGHT // 4), Image.Resampling.LANCZOS)).transpose(2, 0, 1)


def photograph(seed: int) -> bytes:
    """A JPEG of slopes and noise at two scales, of about the size that cameras' have."""
    generator = np.random.default_rng(seed)
    coarse = generator.integers(0, 200, (HEIGHT // 32, WIDTH // 32, 3), dtype=np.uint8)
    picture = Image.fromarray(coarse).resize((WIDTH, HEIGHT), Image.Resampling.BICUBIC)
    noise = generator.integers(0, 40, (HEIGHT, WIDTH, 3), dtype=np.uint8)
    sink = io.BytesIO()
    Image.fromarray(np.asarray(picture) + noise).save(sink, "JPEG", quality=85)
    return sink.getvalue()


def summarise(rates: dict[str, list[float]]) -> dict[str, float]:
    """Medians over the rounds of the ratios within each."""
    loop, one, two = rates.values()
    return {
        "one core / plain loop": statistics.median(a / b for a, b in zip(one, loop, strict=True)),
        "two cores / one core": statistics.median(a / b for a, b in zip(two, one, strict=True)),
    }


if __name__ == "__main__":
    main()
