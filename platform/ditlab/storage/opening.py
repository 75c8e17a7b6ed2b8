"""The file system of a URI: pyarrow's own where it has one for the scheme, else fsspec's."""

from typing import Any

from ditlab.errors import Unreachable, UserError, first_line


def open_uri(knob: str, uri: str) -> tuple[Any, str]:
    """Open a URI as a `pyarrow.fs.FileSystem`, and return it with the path in it.

    Raises UserError for a URI that no library here understands, and Unreachable where the library connects at once and
    gets no answer.
    """
    from pyarrow import ArrowInvalid
    from pyarrow.fs import FileSystem

    try:
        filesystem, path = FileSystem.from_uri(uri)
        return filesystem, path
    except ArrowInvalid as error:
        if "Unrecognized filesystem type" not in str(error):
            raise UserError(f"{knob}={uri} cannot be opened ({first_line(error)}); correct it.") from None
    except (OSError, NotImplementedError) as error:
        kind = UserError if isinstance(error, NotImplementedError) else Unreachable
        raise kind(
            f"{knob}={uri} cannot be reached ({first_line(error)}); check the address and the environment."
        ) from None
    return _by_fsspec(knob, uri)


def with_timeouts(filesystem: Any, silence: float) -> Any:
    """Return the file system with requests that end after `silence` seconds without a byte, and are not repeated.

    For callers that repeat them by themselves. Only pyarrow's client of S3 has such settings; another is returned as it
    is.
    """
    if filesystem.type_name != "s3":
        return filesystem
    from pyarrow.fs import AwsStandardS3RetryStrategy, S3FileSystem

    settings = dict(filesystem.__reduce__()[1][0])  # credentials stay what they are: looked up, or the URI's
    settings |= {"request_timeout": silence, "connect_timeout": silence}
    return S3FileSystem(**settings, retry_strategy=AwsStandardS3RetryStrategy(max_attempts=1))


def _by_fsspec(knob: str, uri: str) -> tuple[Any, str]:
    from pyarrow.fs import FSSpecHandler, PyFileSystem

    try:
        from fsspec.core import url_to_fs

        inner, path = url_to_fs(uri)
    except ImportError as error:
        raise UserError(
            f"{knob}={uri} needs a library that is not installed ({first_line(error)}); "
            "install it on every node, or name another place."
        ) from None
    except Exception as error:  # each of fsspec's libraries has exceptions of its own
        raise UserError(
            f"{knob}={uri} cannot be opened ({first_line(error)}); "
            "known are a folder's path, s3://, gs://, abfs://, hdfs:// and what fsspec has a library for."
        ) from None
    return PyFileSystem(FSSpecHandler(inner)), str(path)
