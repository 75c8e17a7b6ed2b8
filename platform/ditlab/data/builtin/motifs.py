"""Generated regions with planted motif modules."""

import hashlib
from functools import lru_cache

import numpy as np

from ditlab.data.genome.planted_modules import VERSION, PlantedModules, chromosome_name, feature_names
from ditlab.data.genome.region_windows import plan_windows, region_columns, window_batches
from ditlab.data.stores.manifest import MANIFEST_NAME, Source
from ditlab.data.stores.store import Store
from ditlab.data.stores.written import write_store
from ditlab.home import Home
from ditlab.spec.data import HoldOutClasses, MotifsData


def open_motifs(spec: MotifsData, home: Home, verify: bool = True) -> Store:
    """Open the spec's store under `home.stores`, written at its first use.

    Two processes may write it at once: they write the same files.
    """
    path = home.stores / store_name(spec)
    if not (path / MANIFEST_NAME).exists():
        home.ensure()
        law, names = PlantedModules(spec), feature_names(spec.motifs)
        plan = plan_windows([law.peaks(index) for index in range(spec.chromosomes)], spec.regions)
        features = lru_cache(maxsize=1)(law.features)  # windows come chromosome by chromosome

        def window(chromosome: int, first: int, stop: int) -> np.ndarray:
            return features(chromosome)[first:stop]

        write_store(
            path,
            region_columns(spec.regions, names, (1.0,) * len(names), chromosome_names(spec)),
            window_batches(plan, len(names), window),
            name=path.name,
            description=f"generated regions of {spec.chromosomes} chromosomes, with planted motif modules",
            source=Source(
                kind="motifs", license="none: the numbers are generated", note=f"drawn from {_law(spec)} by ditlab"
            ),
        )
    return Store.open(path, verify)


def last_chromosomes(spec: MotifsData) -> HoldOutClasses:
    """Return the default hold-out of a spec: its last two chromosomes."""
    return HoldOutClasses(column="chromosome", values=tuple(chromosome_names(spec)[-2:]))


def chromosome_names(spec: MotifsData) -> list[str]:
    """Return the names of the spec's chromosomes."""
    return [chromosome_name(index) for index in range(spec.chromosomes)]


def store_name(spec: MotifsData) -> str:
    """Return the store's name: `motifs-` and a hash of all that its contents depend on."""
    return f"motifs-{hashlib.sha256(_law(spec).encode()).hexdigest()[:12]}"


def _law(spec: MotifsData) -> str:
    drawn = spec.model_dump(exclude={"kind", "hold_out"})
    return f"version={VERSION}, " + ", ".join(f"{name}={value}" for name, value in sorted(drawn.items()))
