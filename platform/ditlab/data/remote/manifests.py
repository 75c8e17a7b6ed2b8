"""Manifests of stores behind a URI."""

from pathlib import Path

from ditlab.data.stores.bucketed_store import AnyStore, BucketedStore
from ditlab.data.stores.files import UPLOAD_AGAIN, ReadFile, RootManifest, read_contents, read_root
from ditlab.data.stores.manifest import StoreManifest
from ditlab.data.stores.manifest_parsing import MANIFEST_BYTES
from ditlab.data.stores.store import Store
from ditlab.errors import UserError
from ditlab.spec.uris import is_uri, refuse_storage
from ditlab.storage.remote import RemoteFiles

READ_REMEDY = "check the address, the network and the credentials in the environment"


def read_manifest(files: RemoteFiles) -> ReadFile:
    """Return the function that reads a manifest below a URI, of which no more than MANIFEST_BYTES are fetched."""

    def read(folder: str, name: str) -> bytes:
        check_plain_remote(files, folder, name)
        content = bytearray()
        for chunk in files.chunks(folder, name):
            content += chunk
            if len(content) > MANIFEST_BYTES:
                raise UserError(
                    f"{files.knob}={files.location}: {name} has more than {MANIFEST_BYTES:,} bytes, which no manifest "
                    f"has; {UPLOAD_AGAIN}."
                )
        return bytes(content)

    return read


def check_plain_remote(files: RemoteFiles, folder: str, name: str) -> None:
    """Raise UserError for a pipe or device below a `file://` URI, which would be waited for or be read without end."""
    if files.filesystem.type_name != "local":
        return
    from pyarrow.fs import FileType

    info = files.filesystem.get_file_info("/".join(filter(None, (files.path, folder, name))))
    if info.type == FileType.Unknown:
        raise UserError(f"{files.knob}={files.location}: {name} is no plain file; {UPLOAD_AGAIN}.")


def open_files(knob: str, uri: str) -> RemoteFiles:
    """Open the files below a URI.

    Raises UserError, naming the knob, for a text that is no URI, holds a secret, or has a scheme without a library.
    """
    try:
        refuse_storage(knob, uri)
    except ValueError as error:
        raise UserError(str(error)) from None
    if not is_uri(uri):
        raise UserError(f"{knob}={uri} is no URI; write scheme://bucket/prefix.")
    return RemoteFiles.open(knob, uri)


def open_root(knob: str, uri: str) -> tuple[RemoteFiles, RootManifest]:
    """Open the files below a URI, and read the root manifest of the store there.

    Raises UserError as `open_files` does, for a place without a store and for an altered manifest; Unreachable where
    the place does not answer.
    """
    files = open_files(knob, uri)
    with files.translating_errors("cannot be read", READ_REMEDY):
        root = read_root(read_manifest(files), f"{knob}={uri}")
    if root is None:
        raise UserError(f"{knob}={uri} holds no store; put one there with `ditlab data upload STORE {uri}`.")
    return files, root


def describe_store(knob: str, uri: str) -> AnyStore:
    """Return the store at a URI without its rows, of which only the manifests are read. Raises as `open_root` does."""
    files, root = open_root(knob, uri)
    with files.translating_errors("cannot be read", READ_REMEDY):
        contents = read_contents(read_manifest(files), root, f"{knob}={uri}")
    if isinstance(root.manifest, StoreManifest):
        return Store(Path(uri), root.manifest)
    return BucketedStore(Path(uri), root.manifest, [Store(Path(uri), manifest) for _, _, manifest in contents.parts])
