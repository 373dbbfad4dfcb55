"""An archive in a bucket holds what one in a folder does: in memory, and through a server that speaks S3."""

from __future__ import annotations

import multiprocessing
import os
import re
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest
from click.testing import CliRunner
from wavecast.analyzer.commands.archive import archive as archive_command
from wavecast.errors import InputError, OutputError, TraceError, WavecastError
from wavecast.formats.archive import init_archive, open_archive
from wavecast.formats.archive.changes import publish, sweep
from wavecast.formats.archive.entry import key_of
from wavecast.formats.archive.seal import is_whole, seal
from wavecast.formats.archive.store import JournalChangedError
from wavecast.formats.archive.stores import bucket, bucket_journal, objects, open_store
from wavecast.formats.archive.stores.bucket import BucketStore
from wavecast.formats.archive.stores.objects import Objects
from wavecast.formats.archive.verify import Fault, verify
from wavecast.formats.codec import encode
from wavecast.formats.files import load_trace, save_trace
from wavecast.formats.trace import Trace, Workload

pytest.importorskip("fsspec")
BUCKET = "wavecast-tests"
WRITERS = 2
EACH = 3


def connect(endpoint: str, cache: Path) -> None:
    """Point the cloud's own configuration at the server of the tests, and at nothing of this machine's."""
    os.environ |= {
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
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # noqa: S603
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
    monkeypatch.setattr(os, "environ", os.environ.copy())
    set_cloud(s3_server, tmp_path, monkeypatch)
    import fsspec

    system = fsspec.filesystem("s3")
    if not system.exists(BUCKET):
        system.mkdir(BUCKET)
    return f"s3://{BUCKET}/{uuid.uuid4().hex}"
