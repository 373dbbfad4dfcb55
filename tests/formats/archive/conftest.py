"""Archives in a folder, in memory, and through a server that speaks S3."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from wavecast.formats.archive import init_archive

BUCKET = "wavecast-tests"


def settings(endpoint: str, cache: Path) -> dict[str, str]:
    """Return what points the cloud's own configuration at the server of the tests, and at nothing of this machine's."""
    return {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        "XDG_CACHE_HOME": str(cache),
    }


@pytest.fixture(scope="session")
def s3_server() -> Iterator[str]:
    """The address of a moto server with an empty bucket."""
    if any(find_spec(name) is None for name in ("moto", "flask", "flask_cors", "s3fs")):
        pytest.skip("needs moto and s3fs: pip install 'wavecast[dev]'")
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        ends_s = time.monotonic() + 60
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                break
            except OSError:
                if server.poll() is not None or time.monotonic() > ends_s:
                    pytest.skip("the server of the tests does not start")
                time.sleep(0.05)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait(timeout=30)


@pytest.fixture
def s3(s3_server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of an empty prefix of a bucket."""
    for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    for name, value in settings(s3_server, tmp_path).items():
        monkeypatch.setenv(name, value)
    import fsspec

    system = fsspec.filesystem("s3", use_listings_cache=False)
    if not system.exists(BUCKET):
        system.mkdir(BUCKET)
    return f"s3://{BUCKET}/{uuid.uuid4().hex}"


@pytest.fixture(params=["folder", "memory", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A folder, or the URL of a prefix, with an empty archive."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    places = {"folder": str(tmp_path / "archive"), "memory": f"memory://{BUCKET}/{uuid.uuid4().hex}"}
    place = places.get(request.param) or str(request.getfixturevalue("s3"))
    assert init_archive(place)
    return place
