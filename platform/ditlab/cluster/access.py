"""Token authentication of Ray: a new token for each instance that we start, the user's token for
clusters.

A token is in RAY_AUTH_TOKEN, in the file that RAY_AUTH_TOKEN_PATH names, or in ~/.ray/auth_token.
"""

import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager

from ditlab.cluster.ray_internals import ray_internal, reload_token
from ditlab.errors import UserError

MODE = "RAY_AUTH_MODE"
TOKEN = "RAY_AUTH_TOKEN"
TOKEN_PATH = "RAY_AUTH_TOKEN_PATH"
REMEDY = (
    f"put the cluster's token into {TOKEN}, into a file that {TOKEN_PATH} names, or into "
    "~/.ray/auth_token (on the head, `ray get-auth-token` shows it)"
)


def own_token() -> AbstractContextManager[None]:
    """Make a Ray instance that the block starts require a new token, whatever the environment says.

    Without one, any process of the machine could run code as this user.
    """
    return environment_of({TOKEN: secrets.token_hex(32), MODE: "token", TOKEN_PATH: None})


def named(address: str) -> str:
    """The address with what names it: `--address HOST:PORT`, or `RAY_ADDRESS=HOST:PORT` where the
    environment does.
    """
    if os.environ.get("RAY_ADDRESS") == address:
        return f"RAY_ADDRESS={address}"
    return f"--address {address}"


def leave_out(address: str) -> str:
    """Remedy for an address that is not needed: `leave --address out` or `unset RAY_ADDRESS`."""
    if os.environ.get("RAY_ADDRESS") == address:
        return "unset RAY_ADDRESS"
    return "leave --address out"


@contextmanager
def users_token() -> Iterator[None]:
    """Send the user's token to a cluster during the block, if there is a token and the environment
    allows it.

    Raises UserError for a token file that cannot be read.
    """
    values = {}
    if MODE not in os.environ:
        reload_token()
        if _has_token():
            values[MODE] = "token"
    with environment_of(values):
        yield


def headers() -> dict[str, str]:
    """Authorization headers of a request to a cluster, to be used inside `users_token`.

    Empty without a token, or where the environment forbids sending it.
    """
    if os.environ.get(MODE, "").lower() != "token" or not _has_token():
        return {}
    found: dict[str, str] = (
        ray_internal("AuthenticationTokenLoader").instance().get_token_for_http_header()
    )
    return found


@contextmanager
def cluster_token(address: str) -> Iterator[None]:
    """Use the user's token for the cluster at HOST:PORT during the block if the cluster requires
    one, else none.

    A cluster without authentication would refuse the requests of a process in token mode, and its
    workers die.

    Raises UserError where the cluster refuses the user's token: Ray itself tries for 20 s, and then
    reports that it cannot connect.
    """
    if _accepts(address, {}):
        with environment_of({MODE: "disabled"}):
            yield
        return
    with users_token():
        if _accepts(address, headers()) is False:
            raise token_refused(address)
        yield


def _accepts(address: str, credentials: Mapping[str, str]) -> bool | None:
    """Return True if a cluster answers a request with these headers, False if it refuses it, None
    if unknown.

    Unknown without grpcio, which `ditlab[cluster]` brings along: Ray itself then says, later, what
    it does not get.
    """
    try:
        import grpc
    except ImportError:
        return None
    from ray.core.generated import gcs_service_pb2, gcs_service_pb2_grpc

    # nor does Ray take a proxy
    with grpc.insecure_channel(address, [("grpc.enable_http_proxy", 0)]) as channel:
        service = gcs_service_pb2_grpc.NodeInfoGcsServiceStub(channel)
        request = gcs_service_pb2.GetClusterIdRequest()
        try:
            service.GetClusterId(request, timeout=5.0, metadata=list(credentials.items()))
        except grpc.RpcError as error:
            if error.code() == grpc.StatusCode.UNAUTHENTICATED:
                return False
            return None
        return True


def token_refused(address: str) -> UserError:
    """UserError for a cluster that refuses this process: its token is wrong, held back, or
    missing.
    """
    if headers():
        return UserError(
            f"{named(address)}: the server there refuses this token; {REMEDY}. If it is no "
            "cluster of Ray, correct the address."
        )
    mode = os.environ.get(MODE)
    if mode and mode.lower() != "token":
        return UserError(
            f"{named(address)}: the cluster requires a token, and {MODE}={mode} holds it back; "
            f"unset {MODE}."
        )
    return UserError(
        f"{named(address)}: the cluster requires a token, and there is none here; {REMEDY}."
    )


@contextmanager
def environment_of(values: Mapping[str, str | None]) -> Iterator[None]:
    """Set environment variables (None: remove them) during the block, for this process and Ray's
    own code in it.
    """

    def put(changes: Mapping[str, str | None]) -> None:
        for name, value in changes.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        if changes:
            reload_token()

    before = {name: os.environ.get(name) for name in values}
    put(values)
    try:
        yield
    finally:
        put(before)


def _has_token() -> bool:
    """Return True if the user has a token. Raises UserError for a token file that cannot be
    read.
    """
    import ray

    try:
        return bool(
            ray_internal("AuthenticationTokenLoader").instance().has_token(ignore_auth_mode=True)
        )
    except ray.exceptions.AuthenticationError:
        path = os.environ.get(TOKEN_PATH)
        raise UserError(
            f"{TOKEN_PATH}={path} cannot be read, or is empty; write the cluster's token there."
        ) from None
