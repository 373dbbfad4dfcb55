"""An archive in a bucket of an object store, through fsspec; one line for whatever goes wrong there.

An object store writes an object whole or not at all, and who reads or lists afterwards sees it (S3, Google Cloud
Storage and Azure promise both). Credentials are the cloud's own configuration (environment, files, the machine's role).
Of errors only the code or kind is told: their texts may hold signed addresses.
"""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import urlsplit

from ...errors import InputError, OutputError, WavecastError, WriteError
from ..files.open import DEFAULT_MAX_BYTES
from .folder import StoredObject, is_name

_EXTRAS: Final = {"s3": "s3", "gs": "gcs", "gcs": "gcs", "az": "azure", "abfs": "azure", "abfss": "azure"}
"""Which extra each kind of URL needs."""
_MEMORY: Final = "memory"
"""Objects of this process, for tests."""
_BUCKET: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(@[A-Za-z0-9.-]+)?")
_TIMES: Final = ("LastModified", "last_modified", "mtime", "updated", "created")
"""What the kinds of store call the time at which an object was written."""
_DENIED: Final = frozenset({"AccessDenied", "Forbidden", "403", "401", "AuthorizationFailure"})
_NO_CREDENTIALS: Final = frozenset(
    {
        "NoCredentialsError", "PartialCredentialsError", "InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken",
        "InvalidToken", "DefaultCredentialsError", "RefreshError", "ClientAuthenticationError", "ProfileNotFound",
        "NoAuthInConfigError", "TokenRetrievalError",
    }
)  # fmt: skip
_UNREACHABLE: Final = re.compile(
    r"(EndpointConnection|ConnectTimeout|ReadTimeout|ClientConnect|ServiceRequest|Connect)"
)


class BucketStore:
    """Keep an archive below a URL."""

    def __init__(self, url: str) -> None:
        self._scheme, self._root = _split(url)
        self._opened: Any = None

    @property
    def location(self) -> str:
        """Return the URL, without a slash at its end."""
        return f"{self._scheme}://{self._root}"

    def create(self) -> None:
        """Look whether the bucket is there; it is never made."""
        self._find("", OutputError)

    def read(self, names: Sequence[str]) -> dict[str, bytes]:
        """Return those of some objects that are there, fetched beside each other; too large ones are cut off."""
        if not names:
            return {}
        paths = {self._system._strip_protocol(self._path(name)): name for name in names}
        found = {}
        with self._asking(InputError):
            answers = self._system.cat(list(paths), on_error="return", start=0, end=DEFAULT_MAX_BYTES)
            for path, answer in answers.items():
                if not isinstance(answer, Exception):
                    found[paths[path]] = bytes(answer)
                elif not isinstance(answer, FileNotFoundError):
                    raise answer
        return found

    def write(self, name: str, data: bytes) -> None:
        """Write an object."""
        try:
            with self._asking(OutputError):
                self._system.pipe_file(self._path(name), data)
        except FileNotFoundError:
            raise self._no_bucket(OutputError) from None

    def remove(self, name: str) -> None:
        """Remove an object, if it is there."""
        with suppress(FileNotFoundError), self._asking(OutputError):
            self._system.rm_file(self._path(name))

    def names(self, folder: str) -> list[str]:
        """Return the names of all objects below a folder, in order."""
        return [item.name for item in self.objects(folder)]

    def objects(self, folder: str) -> list[StoredObject]:
        """Describe all objects below a folder, in order of name."""
        root = self._system._strip_protocol(self.location).rstrip("/") + "/"
        return [
            StoredObject(name=name, size_bytes=int(info.get("size") or 0), written_s=_written_s(info))
            for path, info in sorted(self._find(folder, InputError).items())
            if path.startswith(root) and info.get("type") == "file" and is_name(name := path[len(root) :])
        ]

    def _find(self, folder: str, kind: type[InputError]) -> dict[str, Any]:
        try:
            with self._asking(kind):
                self._system.invalidate_cache()
                return dict(self._system.find(self._path(folder) if folder else self.location, detail=True))
        except FileNotFoundError:
            with self._asking(kind):
                is_there = self._system.exists(f"{self._scheme}://{self._root.partition('/')[0]}")
            if is_there:
                return {}
            raise self._no_bucket(kind) from None

    def _path(self, name: str) -> str:
        return f"{self.location}/{name}"

    @property
    def _system(self) -> Any:
        if self._opened is None:
            try:
                import fsspec

                with self._asking(InputError):
                    self._opened = fsspec.filesystem(self._scheme, **_options(self._scheme))
            except ImportError:
                raise InputError(
                    f"{self.location}: needs pip install 'wavecast[{_EXTRAS.get(self._scheme, 's3')}]'"
                ) from None
        return self._opened

    def _no_bucket(self, kind: type[InputError]) -> InputError:
        bucket = self._root.partition("/")[0]
        return kind(f"{self.location}: there is no bucket {bucket}; make it with the cloud's own tools first")

    @contextmanager
    def _asking(self, kind: type[InputError]) -> Iterator[None]:
        """Say in one line what the cloud's library raises; what is missing is left to the caller."""
        try:
            yield
        except (FileNotFoundError, ImportError, WavecastError):
            raise
        except Exception as error:  # noqa: BLE001 - each cloud's library has exceptions of its own
            raise _explain(self.location, error, kind) from None


def _split(url: str) -> tuple[str, str]:
    """Return a URL's scheme, and bucket and prefix. Raises InputError, which repeats nothing that may be secret."""
    try:
        parts = urlsplit(url)
    except ValueError:
        raise InputError("expected a URL such as s3://bucket/traces") from None
    scheme, bucket, prefix = parts.scheme, parts.netloc, parts.path.strip("/")
    if scheme not in _EXTRAS and scheme != _MEMORY:
        raise InputError(f"{scheme}://: expected a folder, or a URL that begins with s3://, gs://, az:// or abfs://")
    is_account = _EXTRAS.get(scheme) == "azure" and ":" not in bucket
    if ("@" in bucket and not is_account) or parts.query or parts.fragment:
        raise InputError(
            f"{scheme}://: expected bucket and prefix alone; credentials come from the cloud's own configuration, "
            "never from a URL"
        )
    if not _BUCKET.fullmatch(bucket):
        raise InputError(f"{scheme}://: expected a bucket, as in {scheme}://bucket/traces")
    if prefix and not is_name(prefix):
        raise InputError(f"expected a prefix of letters, digits, '.', '_', '-' and '/', found {prefix[:80]!r}")
    return scheme, f"{bucket}/{prefix}" if prefix else bucket


def _options(scheme: str) -> dict[str, Any]:
    """Return how to open a kind of store: nothing that was listed is remembered, since others write."""
    options: dict[str, Any] = {"use_listings_cache": False}
    if scheme == "s3":
        options["config_kwargs"] = {"connect_timeout": 10, "read_timeout": 60, "retries": {"max_attempts": 3}}
    return options


def _written_s(info: dict[str, Any]) -> float | None:
    found = next((info[name] for name in _TIMES if info.get(name)), None)
    if isinstance(found, str):
        try:
            found = datetime.fromisoformat(found)
        except ValueError:
            return None
    if isinstance(found, datetime):
        return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()
    return float(found) if isinstance(found, int | float) else None


def _explain(location: str, error: Exception, kind: type[InputError]) -> WavecastError:
    """Return the error for what a cloud's library raised, without its text."""
    codes = _codes(error)
    name = codes[0]
    if any(code in _NO_CREDENTIALS for code in codes):
        return kind(f"{location}: no credentials that it takes ({name}); see the cloud's own configuration")
    if isinstance(error, PermissionError) or any(code in _DENIED for code in codes):
        return kind(f"{location}: access denied ({name})")
    if any(_UNREACHABLE.match(code) for code in codes):
        return kind(f"{location}: cannot be reached ({name})")
    if kind is OutputError:
        return WriteError(f"{location}: cannot be written ({name})")
    return kind(f"{location}: cannot be read ({name})")


def _codes(error: BaseException) -> list[str]:
    """Return the codes and kinds of an error and of what caused it, the most telling first."""
    found: list[str] = []
    reason: BaseException | None = error
    while reason is not None and len(found) < 16:
        response = getattr(reason, "response", None)
        if isinstance(response, dict) and isinstance(response.get("Error"), dict):
            found.insert(0, re.sub(r"\W", "", str(response["Error"].get("Code")))[:40])
        found.append(type(reason).__name__)
        reason = reason.__cause__ or reason.__context__
    return found
