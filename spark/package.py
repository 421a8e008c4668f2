"""One file with VENUS and all it needs but Spark, for the nodes of a cluster: a PEX, for any Python 3.11 there."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import venus
from venus.errors import ConfigError, VenusError

#: What is in a checkout and not in a wheel.
_NOT_BUILT = shutil.ignore_patterns(".git", ".venv", "build", "dist", "*.egg-info", "__pycache__", "data")


def build_pex(output: Path, wheel: Path | None = None) -> None:
    """Write the PEX; what is installed here goes into it.

    Raises ConfigError if pex is missing or VENUS's own wheel cannot be had.
    """
    if importlib.util.find_spec("pex") is None:
        raise ConfigError("pex is not installed", hint="pip install 'venus-cdc[cluster]'")
    if wheel is not None and not wheel.is_file():
        raise ConfigError(f"--wheel {wheel}: no such file")
    with tempfile.TemporaryDirectory(prefix="venus-pex-") as folder:
        wheel = wheel or _own_wheel(Path(folder))
        # Spark has its own PySpark, which must come before any other: it comes from the node.
        _run(
            sys.executable, "-m", "pex", "--inherit-path=fallback", "--venv-repository", sys.prefix, str(wheel),
            "--output-file", str(output),
        )  # fmt: skip


def _own_wheel(folder: Path) -> Path:
    """Build the wheel of a checkout, from a copy: a build leaves files behind."""
    source = _checkout()
    if source is None:
        raise ConfigError(
            "VENUS was installed from a wheel, which is not kept", hint="name it: venus spark package --wheel FILE"
        )
    copied = folder / "tree"
    shutil.copytree(source, copied, symlinks=True, ignore=_NOT_BUILT)
    _run(sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "wheel", "--no-deps",
         "--wheel-dir", str(folder), str(copied))  # fmt: skip
    return next(folder.glob("*.whl"))


def _checkout() -> Path | None:
    """Return the folder that VENUS is run from, if it can be built."""
    root = Path(venus.__file__).resolve().parents[1]
    return root if (root / "pyproject.toml").exists() and (root / "setup.cfg").exists() else None


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines() or ["nothing was said"]
        raise VenusError(f"{Path(command[2]).name} ended with {done.returncode}: {lines[-1]}")
