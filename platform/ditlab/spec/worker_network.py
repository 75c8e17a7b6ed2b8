"""Network between workers: NCCL's and gloo's settings, and the timeout of a collective."""

import re
from typing import Annotated, Literal

from pydantic import Field, field_validator

from denoisers.contract import Spec
from ditlab.secrets import hide
from ditlab.spec.format_value import format_value

NAMED = {
    "NCCL_SOCKET_IFNAME": "interface",
    "GLOO_SOCKET_IFNAME": "interface",
    "NCCL_IB_DISABLE": "infiniband",
    "NCCL_DEBUG": "debug",
}
"""Variables that fields of their own set."""


class WorkerNetwork(Spec):
    """Network between the workers, set in their environment before they connect; a setting that is left out is NCCL's
    choice, or that of the nodes' own environment."""

    timeout: Annotated[int, Field(gt=0, le=10**6)] | None = None
    """Seconds that a collective waits for the other workers; then the run goes on from its last checkpoint
    (`lost_worker`). Null: 1800, or twice `resources.hang_timeout` where that is longer. While workers train or
    evaluate, `resources.hang_timeout` comes first, as it must be shorter, and names the worker that hangs; this one
    bounds what it leaves alone: building, loading, saving."""
    interface: str | None = None
    """Network interface that workers talk over (`eth0`), the same on every node: NCCL_SOCKET_IFNAME and
    GLOO_SOCKET_IFNAME. Null: the one that NCCL chooses, and that of the host's name for gloo."""
    infiniband: Literal["auto", "off"] = "auto"
    """`off` keeps NCCL from InfiniBand and RoCE (NCCL_IB_DISABLE=1), where a card is there and not connected."""
    debug: Literal["none", "warn", "info"] = "none"
    """Verbosity of NCCL in the workers' logs (NCCL_DEBUG)."""
    nccl: dict[str, str | int] = Field(default_factory=dict)
    """Other variables of NCCL by their names, such as {NCCL_IB_HCA: mlx5}. They are shown in the run's records: a value
    that is a secret is refused."""

    @field_validator("interface")
    @classmethod
    def plain_interface(cls, interface: str | None) -> str | None:
        """One name, as Linux allows it: NCCL and gloo read lists and patterns differently."""
        if interface is not None and not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,14}", interface):
            raise ValueError(
                f"resources.network.interface={format_value(interface)} is no name of a network interface; write one "
                "name as `ip link` lists it, such as eth0."
            )
        return interface

    @field_validator("nccl")
    @classmethod
    def only_other_variables(cls, nccl: dict[str, str | int]) -> dict[str, str | int]:
        """NCCL's, set once, and fit to be shown."""
        for name, value in nccl.items():
            if not re.fullmatch(r"NCCL_[A-Z0-9_]+", name):
                raise ValueError(
                    f"resources.network.nccl.{name} is no variable of NCCL; their names begin with NCCL_, and others "
                    "belong into the environment that the nodes are started in."
                )
            if field := NAMED.get(name):
                raise ValueError(
                    f"resources.network.nccl.{name} is set by resources.network.{field}; set that instead."
                )
            text = str(value)
            if hide(text) != text or "\0" in text:
                raise ValueError(
                    f"resources.network.nccl.{name} holds a secret, which would be written into the run's records; put "
                    "it into the environment that the nodes are started in."
                )
        return nccl

    def environment(self) -> dict[str, str]:
        """Variables of each worker."""
        found = {name: str(value) for name, value in self.nccl.items()}
        if self.interface:
            # Without the sign NCCL takes every interface whose name begins so.
            found |= {"NCCL_SOCKET_IFNAME": f"={self.interface}", "GLOO_SOCKET_IFNAME": self.interface}
        if self.infiniband == "off":
            found["NCCL_IB_DISABLE"] = "1"
        if self.debug != "none":
            found["NCCL_DEBUG"] = self.debug.upper()
        return found
