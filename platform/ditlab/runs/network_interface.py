"""Network interfaces of a machine, against the one that `resources.network.interface` names."""

import socket
from collections.abc import Sequence


def interface_names() -> list[str]:
    """Names of this machine's network interfaces."""
    return [name for _, name in socket.if_nameindex()]


def missing_interface(interface: str, nodes: str, existing: Sequence[str]) -> str:
    """Error message for nodes that lack the configured interface.

    Args:
        interface: value of `resources.network.interface`.
        nodes: the nodes, as `node a` or `nodes a and b`.
        existing: names of the interfaces that these nodes have.
    """
    return (
        f"resources.network.interface={interface} does not exist on {nodes}, which has {', '.join(existing)}; name one "
        "that every node has, or set it to null."
    )
