"""Builds the release: the sdist from a clean copy of the tree, and the wheel from that sdist.

python -m tests.support.distribution FOLDER. An old build folder in the tree would ship stale files, and a wheel built
from the tree would prove nothing about the sdist. It needs no network, because setuptools is installed.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
_BUILD = "import sys; from setuptools import build_meta; build_meta.{}(sys.argv[1])"


def copy_tree(to: Path) -> None:
    """Copy the files of the repository, including uncommitted ones, but not those that git ignores."""
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0")
    for name in filter(None, names):
        source, target = ROOT / name, to / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_symlink():
            target.symlink_to(source.readlink())
        elif source.exists():  # kept until a commit removes it
            target.write_bytes(source.read_bytes())


def build(folder: Path) -> tuple[Path, Path]:
    """Build sdist and wheel into a folder; return their paths."""
    folder = folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        tree, unpacked = Path(scratch) / "tree", Path(scratch) / "unpacked"
        copy_tree(tree)
        _run_backend("build_sdist", tree, folder)
        (sdist,) = folder.glob("venus_cdc-*.tar.gz")
        shutil.unpack_archive(sdist, unpacked)
        (content,) = unpacked.iterdir()
        _run_backend("build_wheel", content, folder)
    (wheel,) = folder.glob("venus_cdc-*.whl")
    return sdist, wheel


def _run_backend(name: str, tree: Path, folder: Path) -> None:
    """Call the build backend as pip does: in a process of its own, in the tree."""
    done = subprocess.run(
        [sys.executable, "-c", _BUILD.format(name), str(folder)], cwd=tree, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"{name} failed\n{done.stdout}{done.stderr}")


if __name__ == "__main__":
    for built in build(Path(sys.argv[1])):
        sys.stdout.write(f"{built}\n")
