"""Makes a profiler file of any size: a real one repeated, with later times, new correlations and step numbers.

Run: python benchmarks/make/long_profile.py DATA/traces/v100_convnet_ddp_training.json.gz long.json 1e9
A target that ends in `.gz` is packed. One repetition at a time is in memory.
"""

from __future__ import annotations

import gzip
import json
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

_LINKS = ("correlation", "External id", "wait_on_cuda_event_record_corr_id")
_STEP = re.compile(r"(ProfilerStep#)(\d+)")
_FREE_US = 1000
"""Between two repetitions."""

Event = dict[str, Any]


def main() -> None:
    """Repeat a file until the target has the size that is asked for."""
    source, target, size = Path(sys.argv[1]), Path(sys.argv[2]), int(float(sys.argv[3]))
    with target.open("wb") as plain, ExitStack() as stack:
        packed: Any = gzip.GzipFile(fileobj=plain, compresslevel=3) if target.suffix == ".gz" else plain
        count = write(json.loads(gzip.decompress(source.read_bytes())), stack.enter_context(packed), size)
    print(f"{source.name}, {count} times: {target.stat().st_size} bytes in {target}")


def write(document: dict[str, Any], stream: BinaryIO, size: int) -> int:
    """Write a profile of at least `size` bytes and return how often the source is in it."""
    events = [event for event in document.pop("traceEvents") if event.get("ph") in ("X", "s", "f", "i")]
    timed = [event for event in events if event["ph"] == "X"]
    first = min(event["ts"] for event in timed)
    length = max(event["ts"] + event["dur"] for event in timed) - first + _FREE_US
    steps = 1 + max((int(found[2]) for event in events if (found := _STEP.match(str(event.get("name"))))), default=0)
    link = 1 + max(_link(event, name) for event in timed for name in _LINKS)
    header = json.dumps(document)[:-1]
    written = stream.write(f'{header}{", " if document else ""}"traceEvents": [\n'.encode())
    count, encode = 0, msgspec.json.Encoder().encode
    while written < size:
        texts = map(encode, _shifted(events, count * length, count * link, count * steps))
        written += stream.write((b",\n" if count else b"") + b",\n".join(texts))
        count += 1
    stream.write(b"\n]}\n")
    return count


def _link(event: Event, name: str) -> int:
    value = event.get("args", {}).get(name)
    return value if isinstance(value, int) and value < 2**31 else 0


def _shifted(events: Sequence[Event], later_us: float, link: int, steps: int) -> Iterator[Event]:
    """Yield the events later, with numbers that no other repetition has."""
    for event in events:
        found = event | {"ts": event["ts"] + later_us}
        if event.get("args"):
            numbers = {name: _link(event, name) + link for name in _LINKS if _link(event, name) > 0}
            found["args"] = event["args"] | numbers
        if match := _STEP.match(str(event.get("name"))):
            found["name"] = f"{match[1]}{int(match[2]) + steps}"
        if "id" in event and isinstance(event["id"], int):
            found["id"] = event["id"] + link
        yield found


if __name__ == "__main__":
    main()
