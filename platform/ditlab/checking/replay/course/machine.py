"""Kind of this machine against the one that a step was done on: on another kind, sums may round in another way."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from ditlab.training.receipts import LIBRARIES, device_name, library_versions, processor_name


@dataclass(frozen=True)
class MachineKind:
    """Device, processor and libraries, on which the last bits of a step depend beside its spec, workers and threads."""

    device: str
    """`cpu`, or the GPU's name."""
    processor: str
    versions: Mapping[str, str]
    """Versions by library."""

    def differences(self, here: "MachineKind") -> list[str]:
        """Return what is other here, a phrase each; [] on a machine of the same kind."""
        found = []
        if self.device != here.device:
            found.append(f"device {here.device} (the run's: {self.device})")
        if self.processor != here.processor and self.device == here.device == "cpu":
            found.append(f"processor {here.processor} (the run's: {self.processor})")
        for name in LIBRARIES:
            if (theirs := self.versions.get(name)) != (ours := here.versions.get(name)):
                found.append(f"{name} {ours} (the run's: {theirs})")
        return found


def machine_here(use_gpu: bool) -> MachineKind:
    """Return the kind of this machine, on its GPU or on its CPU."""
    return MachineKind(device_name(torch.device("cuda" if use_gpu else "cpu")), processor_name(), library_versions())
