"""A lake as a target of the configuration: who may write to it, how it is opened, what it says of itself.

`[targets.NAME] url = "parquet:///folder"`. The same broker, the same consumer group as any other target; no database,
and no Spark is needed to write it.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from venus.adapters.targets.base import Configured
from venus.adapters.targets.parquet.layout import Layout, point, publish, remove_hidden, remove_versions, root_of
from venus.adapters.targets.parquet.manifest import LakeTable, Manifest
from venus.config import Settings
from venus.errors import ConfigError, Refused, TargetError

#: What others than the owner may do with a file or folder.
_OTHERS = 0o077


class LakeTarget(Configured):
    """Target `name` of the configuration."""

    def __init__(self, settings: Settings, name: str) -> None:
        super().__init__(settings, name)
        self.layout = Layout(root_of(self.url, f"targets.{name}.url").absolute())

    @property
    def description(self) -> str:
        """The folder."""
        return str(self.layout.root)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Be the only process that writes. Raises Refused if there is another one; a killed one holds nothing.

        What is written meanwhile can be read by whoever may read the folder: only its owner if VENUS has made it.
        """
        root = self.layout.root
        try:
            self.check_folder()
            root.mkdir(parents=True, exist_ok=True, mode=0o700)
            denied = ~root.stat().st_mode & _OTHERS
            descriptor = os.open(self.layout.lock, os.O_RDWR | os.O_CREAT, 0o666 & ~denied)
        except OSError as error:
            raise TargetError(f"target {self.name}: {root}: {error.strerror}") from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            raise self.at_work from None
        before = os.umask(denied)  # of the process: the files are PyArrow's
        try:
            yield
        finally:
            os.umask(before)
            os.close(descriptor)

    def check_folder(self) -> None:
        """Refuse a folder with somebody else's files, or one that cannot be written."""
        layout = self.layout
        there = next(path for path in (layout.root, *layout.root.parents) if path.exists())
        if there.is_dir() and not os.access(there, os.W_OK | os.X_OK):
            raise TargetError(f"target {self.name}: {there} cannot be written", hint="let VENUS's user write there")
        if layout.root.exists() and not layout.root.is_dir():
            raise ConfigError(f"targets.{self.name}.url: {layout.root} is a file", hint="name a folder")
        ours = (layout.manifest, layout.load, layout.lock)
        if layout.root.exists() and not any(p.exists() for p in ours) and any(layout.root.iterdir()):
            raise Refused(f"{layout.root} has files that are not of VENUS", hint="name an empty folder")

    def manifest(self) -> Manifest | None:
        """Return the last committed state; None = never loaded."""
        return Manifest.read(self.layout.manifest)

    def recovered(self) -> Manifest | None:
        """Return the last committed state, with everything in its place: finish what was committed, undo the rest."""
        found = self.manifest()
        if found is None:
            return None
        self.settle(found)
        self.end_load(found)
        remove_hidden(self.layout.root / "history")
        for table in found.tables.values():
            if not self.layout.load.exists():  # an interrupted load goes on with the states that it has
                self.tidy(table)
        return found

    def end_load(self, found: Manifest | None = None) -> None:
        """Put away what a load has replaced, once it is committed; may be repeated."""
        try:
            plan = json.loads(self.layout.load.read_text(encoding="utf-8"))
        except (FileNotFoundError, ValueError):
            return
        found = found or self.manifest()
        states = plan.get("states")
        if found is None or not states or not all(t.base.folder.startswith(states) for t in found.tables.values()):
            return
        layout, history = self.layout, self.layout.root / "history"
        if plan["history"] and history.exists():
            history.rename(layout.root / plan["history"])
        folders = {table.folder for table in found.tables.values()}
        for path in (layout.root / "versions").iterdir() if (layout.root / "versions").exists() else ():
            if path.name not in folders:
                layout.current(path.name).unlink(missing_ok=True)
                shutil.rmtree(path)
        for table in found.tables.values():
            self.tidy(table)
        layout.load.unlink()

    def tidy(self, table: LakeTable) -> None:
        """Remove states of a table that were never committed, or that nobody reads any more."""
        remove_versions(self.layout.root / "versions" / table.folder, {table.base.folder, table.previous})

    def settle(self, manifest: Manifest) -> None:
        """Let files and links be as a committed manifest says; may be repeated."""
        root = self.layout.root
        publish(root / path for path in manifest.publish)
        for table in manifest.tables.values():
            if table.base.folder:
                point(self.layout.current(table.folder), self.layout.version(table.folder, table.base.folder))

    def commit(self, manifest: Manifest, publish: list[Path]) -> None:
        """Commit a state whose files are on the disk, then put everything in its place."""
        manifest.publish = [self.layout.inside(path) for path in publish]
        manifest.save(self.layout.manifest)
        self.settle(manifest)

    # -- what operators ask for: a file for each wish, as the manifest belongs to the process that follows -------------

    @property
    def paused(self) -> bool:
        """Whether an operator wants nothing to be applied."""
        return self.layout.asked("pause").exists()

    def pause(self, *, paused: bool) -> None:
        """Stop applying, or go on."""
        asked = self.layout.asked("pause")
        if paused:
            asked.touch()
        else:
            asked.unlink(missing_ok=True)

    def ask_resync(self, table_id: int) -> None:
        """Ask for a table's state to be read again from the broker."""
        self.layout.asked(f"resync-{table_id}").touch()

    def asked_resyncs(self) -> list[int]:
        """Return the tables whose state shall be read again."""
        return sorted(int(path.name.rpartition("-")[2]) for path in self.layout.root.glob(".asked-resync-*"))

    def resynced(self, table_id: int) -> None:
        """Take note that it has been."""
        self.layout.asked(f"resync-{table_id}").unlink(missing_ok=True)
