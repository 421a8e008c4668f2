"""A lake as a target of the configuration: its lock, its recovery, its commits and operators' requests.

`[targets.NAME] url = "parquet:///folder"`. A lake has a broker and a consumer group like any other target. Writing it
needs neither a database nor Spark.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from venus.adapters.targets.base import ConfiguredTarget
from venus.adapters.targets.parquet.files import (
    LakePaths,
    point_link,
    publish,
    remove_hidden,
    remove_versions,
    root_folder,
)
from venus.adapters.targets.parquet.manifest import LakeManifest, LakeTable
from venus.config import Settings
from venus.errors import ConfigError, Refused, TargetError

#: Permissions of users other than the owner on a file or folder.
_OTHERS = 0o077


class ParquetFolder(ConfiguredTarget):
    """A folder of Parquet files that is target `name` of the configuration."""

    def __init__(self, settings: Settings, name: str) -> None:
        super().__init__(settings, name)
        self.layout = LakePaths(root_folder(self.url, f"targets.{name}.url").absolute())

    @property
    def description(self) -> str:
        """The folder."""
        return str(self.layout.root)

    @contextmanager
    def hold_lock(self) -> Iterator[None]:
        """Hold the lock of the only writer. Raises Refused if another process has it; a killed process holds no lock.

        New files get the permissions of the folder: only the owner can read them if VENUS created the folder.
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
            raise self.locked_error from None
        before = os.umask(denied)  # of the process: the files are PyArrow's
        try:
            yield
        finally:
            os.umask(before)
            os.close(descriptor)

    def check_folder(self) -> None:
        """Refuse a folder that contains other files than those of VENUS, or is not writable."""
        layout = self.layout
        there = next(path for path in (layout.root, *layout.root.parents) if path.exists())
        if there.is_dir() and not os.access(there, os.W_OK | os.X_OK):
            raise TargetError(f"target {self.name}: {there} cannot be written", hint="let VENUS's user write there")
        if layout.root.exists() and not layout.root.is_dir():
            raise ConfigError(f"targets.{self.name}.url: {layout.root} is a file", hint="name a folder")
        ours = (layout.manifest, layout.load, layout.lock)
        if layout.root.exists() and not any(p.exists() for p in ours) and any(layout.root.iterdir()):
            raise Refused(f"{layout.root} contains files that VENUS did not write", hint="name an empty folder")

    def read_manifest(self) -> LakeManifest | None:
        """Return the last committed state; None if the lake was never loaded."""
        return LakeManifest.read(self.layout.manifest)

    def recover(self) -> LakeManifest | None:
        """Finish what was committed, undo the rest, and return the last committed state."""
        found = self.read_manifest()
        if found is None:
            return None
        self.publish_committed(found)
        self.finish_load(found)
        remove_hidden(self.layout.root / "history")
        for table in found.tables.values():
            if not self.layout.load.exists():  # an interrupted load resumes with the states that it has
                self.remove_old_states(table)
        return found

    def finish_load(self, found: LakeManifest | None = None) -> None:
        """Remove what a committed load has replaced; may be repeated."""
        try:
            plan = json.loads(self.layout.load.read_text(encoding="utf-8"))
        except (FileNotFoundError, ValueError):
            return
        found = found or self.read_manifest()
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
            self.remove_old_states(table)
        layout.load.unlink()

    def remove_old_states(self, table: LakeTable) -> None:
        """Remove states of a table that were never committed or are no longer in use."""
        remove_versions(self.layout.root / "versions" / table.folder, {table.base.folder, table.previous})

    def publish_committed(self, manifest: LakeManifest) -> None:
        """Publish the files and set the links that a committed manifest names; may be repeated."""
        root = self.layout.root
        publish(root / path for path in manifest.publish)
        for table in manifest.tables.values():
            if table.base.folder:
                point_link(self.layout.current(table.folder), self.layout.version(table.folder, table.base.folder))

    def commit(self, manifest: LakeManifest, publish: list[Path]) -> None:
        """Commit a state whose files are durable, then publish them and set the links."""
        manifest.publish = [self.layout.relative_path(path) for path in publish]
        manifest.save(self.layout.manifest)
        self.publish_committed(manifest)

    # -- operators' requests: one file each, because only the process that follows writes the manifest -----------------

    @property
    def paused(self) -> bool:
        """Whether an operator has paused the target."""
        return self.layout.request_file("pause").exists()

    def set_paused(self, *, paused: bool) -> None:
        """Pause or resume."""
        asked = self.layout.request_file("pause")
        if paused:
            asked.touch()
        else:
            asked.unlink(missing_ok=True)

    def request_resync(self, table_id: int) -> None:
        """Request that a table's state be read again from the broker."""
        self.layout.request_file(f"resync-{table_id}").touch()

    def requested_resyncs(self) -> list[int]:
        """Return the tables whose state is to be read again."""
        return sorted(int(path.name.rpartition("-")[2]) for path in self.layout.root.glob(".asked-resync-*"))

    def clear_resync_request(self, table_id: int) -> None:
        """Remove the request of a table after its state was read again."""
        self.layout.request_file(f"resync-{table_id}").unlink(missing_ok=True)
