"""Where things lie in a lake: a folder of Parquet files, the target that is no database (issue 3, section 4).

    manifest.json                                 the commit point: offset, tables, which files belong to it
    current/shop.items -> ../versions/...         the state as of the last refresh; a link, so that it changes at once
    versions/shop.items/00000000000000000123/     one state: immutable Parquet files
    history/shop.items/version=1/*.parquet        every change, in files that never change

What is being written has a hidden name (Spark and pyarrow pass over names that begin with a dot); it gets its own name
when the manifest that mentions it has been renamed into place.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

from venus.errors import ConfigError

SCHEME = "parquet"
MANIFEST = "manifest.json"
LOAD = "load.json"
LOCK = "lock"


def root_of(url: str, place: str = "url") -> Path:
    """Return the folder that parquet:///absolute/path or parquet:relative/path means. Raises ConfigError."""
    parts = urlsplit(url)
    if parts.scheme != SCHEME or parts.netloc or not parts.path.strip("/"):
        raise ConfigError(
            f"{place}: {url} is not the URL of a folder for Parquet files",
            hint="write parquet:///absolute/path or parquet:path",
        )
    return Path(unquote(parts.path))


def folder_name(namespace: str, name: str) -> str:
    """Return the folder of a table; whatever a path or a reader would take amiss is percent-encoded."""
    return ".".join(quote(part, safe=" $#@").replace(".", "%2E") for part in (namespace, name))


class Layout:
    """The paths of one lake."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.manifest = root / MANIFEST
        self.load = root / LOAD
        self.lock = root / f".{LOCK}"

    def current(self, folder: str) -> Path:
        """Return the link to a table's newest state."""
        return self.root / "current" / folder

    def version(self, folder: str, name: str) -> Path:
        """Return the folder of one state of a table."""
        return self.root / "versions" / folder / name

    def history(self, folder: str, shape: int) -> Path:
        """Return the folder of a table's changes; those of one shape have the same columns and types."""
        return self.root / "history" / folder / f"version={shape}"

    def asked(self, what: str) -> Path:
        """Return the file that stands for an operator's wish."""
        return self.root / f".asked-{what}"

    def inside(self, path: Path) -> str:
        """Return a path as the manifest has it."""
        return path.relative_to(self.root).as_posix()


def hidden(path: Path) -> Path:
    """Return the name under which a file is written that is not committed yet."""
    return path.with_name(f".{path.name}.tmp")


def sync(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def replace_text(path: Path, text: str) -> None:
    """Write a file so that there is the old one or the new one, whatever happens."""
    new = hidden(path)
    with new.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)
    sync(path.parent)


def publish(paths: Iterable[Path]) -> None:
    """Give committed files their names; may be repeated."""
    folders = set()
    for path in paths:
        with suppress(FileNotFoundError):  # it has its name already
            hidden(path).rename(path)
            folders.add(path.parent)
    for folder in folders:
        sync(folder)


def point(link: Path, to: Path) -> None:
    """Let the link lead to another folder, in one step."""
    wanted = os.path.relpath(to, link.parent)
    if link.is_symlink() and os.readlink(link) == wanted:
        return
    link.parent.mkdir(parents=True, exist_ok=True)
    new = link.with_name(f".{link.name}.link")
    new.unlink(missing_ok=True)
    new.symlink_to(wanted)
    new.replace(link)
    sync(link.parent)


def remove_hidden(folder: Path) -> None:
    """Remove what an interrupted writer has left."""
    for path in folder.rglob(".*.tmp") if folder.exists() else ():
        path.unlink()


def remove_versions(folder: Path, keep: set[str]) -> None:
    """Remove the states of a table that nobody needs."""
    for path in folder.iterdir() if folder.exists() else ():
        if path.name not in keep:
            shutil.rmtree(path)
