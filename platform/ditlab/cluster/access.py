"""Ray's token authentication: an own token for each instance that we start, the user's own for clusters.

A token stands in RAY_AUTH_TOKEN, in the file that RAY_AUTH_TOKEN_PATH names, or in ~/.ray/auth_token.
"""

import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from ditlab.errors import UserError

MODE, TOKEN, TOKEN_PATH = "RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"
REMEDY = (
    f"put the cluster's token into {TOKEN}, into a file that {TOKEN_PATH} names, or into ~/.ray/auth_token (on the "
    "head, `ray get-auth-token` shows it)"
)


@contextmanager
def own_token() -> Iterator[None]:
    """Inside, an instance that this process starts takes nobody without a token made for it, whatever the environment
    says: any process of the machine could otherwise run code as this user."""
    token = secrets.token_hex(32)
    with _environment({TOKEN: token, MODE: "token", TOKEN_PATH: None}):
        yield


@contextmanager
def users_token() -> Iterator[None]:
    """Inside, the user's token is shown to a cluster, where there is one and the environment does not forbid it. Raises
    UserError for a token's file that cannot be read."""
    if MODE in os.environ:
        yield
        return
    _reload()
    with _environment({MODE: "token"} if _has_token() else {}):
        yield


def headers() -> dict[str, str]:
    """Of a request to a cluster, inside `users_token`: its authorization; empty without a token, or where the
    environment forbids to show it."""
    if os.environ.get(MODE, "").lower() != "token" or not _has_token():
        return {}
    found: dict[str, str] = _loader().get_token_for_http_header()
    return found


@contextmanager
def entering(address: str) -> Iterator[None]:
    """Inside, this process speaks to the cluster at HOST:PORT as the cluster wants: with the user's token, or without.

    A cluster that takes everybody would refuse what a process in token mode sends, and its workers die. Raises
    UserError where it refuses the user's token: Ray itself asks for 20 s, and then says that it cannot connect. Needs
    grpcio, which comes with the job server's extra; without it Ray has the word.
    """
    if _takes(address, {}):
        with _environment({MODE: "disabled"}):
            yield
        return
    with users_token():
        if _takes(address, headers()) is False:
            raise refused(address)
        yield


def _takes(address: str, shown: Mapping[str, str], timeout: float = 5.0) -> bool | None:
    """Whether a cluster answers to somebody who shows this; None where nobody can tell."""
    try:
        import grpc
    except ImportError:
        return None
    from ray.core.generated import gcs_service_pb2, gcs_service_pb2_grpc

    with grpc.insecure_channel(address) as channel:
        service = gcs_service_pb2_grpc.NodeInfoGcsServiceStub(channel)
        try:
            service.GetClusterId(gcs_service_pb2.GetClusterIdRequest(), timeout=timeout, metadata=list(shown.items()))
        except grpc.RpcError as error:
            return False if error.code() == grpc.StatusCode.UNAUTHENTICATED else None
        return True


def refused(address: str) -> UserError:
    """What a cluster's refusal means: it differs for a token that is wrong, kept back, or not there."""
    if headers():
        return UserError(f"--address {address}: the cluster refuses this token; {REMEDY}.")
    if (mode := os.environ.get(MODE)) and mode.lower() != "token":
        return UserError(
            f"--address {address}: the cluster wants a token, and {MODE}={mode} keeps it back; unset {MODE}."
        )
    return UserError(f"--address {address}: the cluster wants a token, and there is none here; {REMEDY}.")


@contextmanager
def _environment(values: Mapping[str, str | None]) -> Iterator[None]:
    """Inside, these variables have these values (None: are not there), for this process and Ray's own code in it."""
    before = {name: os.environ.get(name) for name in values}
    _set(values)
    try:
        yield
    finally:
        _set(before)


def _set(values: Mapping[str, str | None]) -> None:
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    if values:
        _reload()


def _reload() -> None:
    """Ray reads mode and token once a process."""
    import ray

    ray._raylet.Config.initialize("")
    _loader().reset_cache()


def _has_token() -> bool:
    import ray

    try:
        return bool(_loader().has_token(ignore_auth_mode=True))
    except ray.exceptions.AuthenticationError:
        path = os.environ.get(TOKEN_PATH)
        raise UserError(f"{TOKEN_PATH}={path} cannot be read, or is empty; write the cluster's token there.") from None


def _loader() -> Any:
    import ray

    return ray._raylet.AuthenticationTokenLoader.instance()
