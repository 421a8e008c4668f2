"""Generate venus/wire from protos/; with --check, only report whether it is up to date.

The folder structure in protos/ equals the Python package, so that the imports in the generated code are right without
rewriting.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from grpc_tools import protoc

ROOT = Path(__file__).parents[2]
PROTOS = ROOT / "protos"


def generate(out: Path) -> None:
    """Compile every .proto below protos/ into `out`."""
    files = sorted(str(p) for p in PROTOS.rglob("*.proto"))
    flags = [f"--{kind}_out={out}" for kind in ("python", "grpc_python", "mypy", "mypy_grpc")]
    include = Path(protoc.__file__).parent / "_proto"
    plugins = [
        f"--plugin=protoc-gen-{n}={Path(sys.executable).parent / f'protoc-gen-{n}'}" for n in ("mypy", "mypy_grpc")
    ]
    if protoc.main(["protoc", f"-I{PROTOS}", f"-I{include}", *plugins, *flags, *files]):
        raise SystemExit("protoc failed")


def stale_files() -> list[str]:
    """Return the generated files that differ from the current output of protos/."""
    with tempfile.TemporaryDirectory() as folder:
        generate(Path(folder))
        fresh = sorted((Path(folder) / "venus/wire").iterdir())
        return [
            f.name
            for f in fresh
            if not (have := ROOT / "venus/wire" / f.name).exists() or have.read_bytes() != f.read_bytes()
        ]


if __name__ == "__main__":
    if "--check" not in sys.argv:
        generate(ROOT)
    elif names := stale_files():
        raise SystemExit(f"venus/wire is out of date ({', '.join(names)}): run `make protos`")
