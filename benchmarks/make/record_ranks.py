"""Record the samples of many ranks: one rank of a Llama-like block under FSDP2 and tensor parallel, no GPU needed.

python -m benchmarks.make.record_ranks -o samples
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path
from typing import Final

_SCRIPT: Final = Path(__file__).parent / "distributed" / "llama_fsdp.py"
_SAMPLES: Final = {
    "llama_block-training-bf16-b1-fsdp8-tp2-rank0of16-shapes": (16, ("--layers", "2", "--tp", "2")),
    "llama_block-training-bf16-b1-fsdp8-rank0of8-shapes": (
        8,
        (
            "--layers",
            "2",
        ),
    ),
}
"""World size and arguments of each file: two layers of Llama 3 8B with its embedding and head, a context of 4,096."""


def main() -> None:
    """Record each file in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("-o", "--output", type=Path, default=Path("samples"))
    folder = parser.parse_args().output
    for name, (world_size, arguments) in _SAMPLES.items():
        place = ["--world-size", str(world_size), "--rank", "0", "--name", "llama_block", "--batch-size", "1"]
        command = ["-m", "wavecast", "record", "--shapes-only", *place, "-o", str(folder / f"{name}.json.gz")]
        subprocess.run([sys.executable, *command, str(_SCRIPT), *arguments], check=True)


if __name__ == "__main__":
    main()
