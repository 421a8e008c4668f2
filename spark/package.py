"""One file with VENUS and all it needs but Spark, for the nodes of a cluster: a PEX, for any Python 3.11 there."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from urllib.parse import unquote, urlsplit

from venus.errors import ConfigError, VenusError

DISTRIBUTION = "venus-cdc"
#: What is in a checkout and not in a wheel.
_NOT_BUILT = shutil.ignore_patterns(".git", ".venv", "build", "dist", "*.egg-info", "__pycache__", "data")


def build_pex(output: Path, wheel: Path | None = None) -> None:
    """Write the PEX; what is installed here goes into it, nothing is downloaded.

    Raises ConfigError if pex is missing or VENUS's own wheel cannot be had.
    """
    if importlib.util.find_spec("pex") is None:
        raise ConfigError("pex is not installed", hint="pip install 'venus-cdc[cluster]'")
    if wheel is not None and not wheel.is_file():
        raise ConfigError(f"--wheel {wheel}: no such file")
    with tempfile.TemporaryDirectory(prefix="venus-pex-") as folder:
        wheel = wheel or _own_wheel(Path(folder))
        # Spark has its own PySpark, which must go before any other: it comes from the node.
        _run(
            sys.executable, "-m", "pex", "--inherit-path=fallback", "--venv-repository", sys.prefix, str(wheel),
            "--output-file", str(output),
        )  # fmt: skip


def _own_wheel(folder: Path) -> Path:
    """Build the wheel of an editable checkout, from a copy: a build leaves files behind."""
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
    """Return where an editable installation was made from."""
    try:
        text = importlib.metadata.distribution(DISTRIBUTION).read_text("direct_url.json") or "{}"
    except importlib.metadata.PackageNotFoundError:
        return None
    origin = json.loads(text)
    if not origin.get("dir_info", {}).get("editable"):
        return None
    return Path(unquote(urlsplit(origin["url"]).path))


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines() or ["nothing was said"]
        raise VenusError(f"{Path(command[2]).name} ended with {done.returncode}: {lines[-1]}")
