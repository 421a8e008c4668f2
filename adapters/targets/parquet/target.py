"""A folder of Parquet files as a `Target` for the commands."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence as Seq

from venus.adapters.targets.contract import (
    CommandResult,
    FillEnd,
    FollowReporter,
    LoadProgress,
    LoadReport,
    LoadReporter,
    RunnerChooser,
    Target,
    TargetCapabilities,
    require_capability,
)
from venus.adapters.targets.parquet.lake_stream import run_lake
from venus.adapters.targets.parquet.load import load_lake
from venus.adapters.targets.parquet.manifest import LakeManifest, ParquetFolder, row_counts, table_state
from venus.adapters.targets.registry import TargetBase
from venus.adapters.targets.views import TargetTable, TargetView, age_s
from venus.codec import arrow_rows
from venus.config import Settings
from venus.errors import VenusError
from venus.masking.projection import describe_masks
from venus.model import Finding, TableSchema
from venus.text.formatting import find_named_table

CAPABILITIES = TargetCapabilities(kind="a folder of Parquet files", masks=True)


def open_target(settings: Settings, name: str) -> Target:
    """Return the target; the folder need not exist yet."""
    return ParquetTarget(settings, name)


class ParquetTarget(TargetBase):
    """A folder of Parquet files that is target `name` of the configuration."""

    capabilities = CAPABILITIES

    def __init__(self, settings: Settings, name: str) -> None:
        self.name = name
        self._settings = settings

    @property
    def _folder(self) -> ParquetFolder:
        return ParquetFolder(self._settings, self.name)

    # -- before anything is written ------------------------------------------------------------------------------------

    def check(self, schemas: Seq[TableSchema]) -> list[Finding]:
        where = f"target {self.name}"
        try:
            self._folder.check_folder()
            schemas = self._folder.columns.project_all(schemas)
        except VenusError as error:
            return [Finding(where=where, message=str(error), remedy=error.hint, blocks=not error.retryable)]
        seen = self.read_view()
        found = Finding(where=where, message=seen.error or CAPABILITIES.kind, blocks=bool(seen.error))
        return [found, *check_text_columns(where, schemas)]

    def require_fit(self, schemas: Seq[TableSchema]) -> None:
        with self._folder.hold_lock():
            self._folder.columns.project_all(schemas)

    # -- load and follow -----------------------------------------------------------------------------------------------

    def load(
        self,
        report: LoadReporter | None = None,
        *,
        choose: RunnerChooser | None = None,
        empty_meanwhile: bool = False,
        fill_end: FillEnd | None = None,
    ) -> LoadReport:
        if fill_end is not None:
            require_capability(self, "loads_while_read")

        def report_rows(rows: int, estimate: int) -> None:
            if report is not None:
                report(LoadProgress(phase="loading", rows=rows, rows_estimate=estimate))

        return load_lake(self._folder, report_rows)

    def follow(self, stop: threading.Event, report: FollowReporter | None = None) -> None:
        run_lake(self._settings, self.name, stop, report)

    # -- operators -----------------------------------------------------------------------------------------------------

    def read_view(self) -> TargetView:
        group = f"{self._settings.business.name}/{self.name}"
        try:
            folder = self._folder
            manifest = folder.read_manifest()
        except VenusError as error:
            return TargetView(name=self.name, group=group, error=str(error))
        if manifest is None:
            return TargetView(name=self.name, group=group, place=folder.description)
        return build_view(
            self.name,
            manifest,
            place=folder.description,
            paused=folder.is_paused,
            resyncing=set(folder.requested_resyncs()),
            now_us=time.time_ns() // 1000,
        )

    def read_row_counts(self) -> dict[int, int]:
        found = self._folder.read_manifest()
        return row_counts(found) if found is not None else {}

    def pause(self, table: str | None, reason: str) -> CommandResult:
        return self._set_paused("pause", table, "PAUSED")

    def resume(self, table: str | None) -> CommandResult:
        return self._set_paused("resume", table, "ACTIVE")

    def _set_paused(self, command: str, table: str | None, state: str) -> CommandResult:
        """Pause or resume the target; return its tables with their new state."""
        tables = self._require_manifest().tables.values()
        if table is not None:
            find_named_table(table, [accepted_names(t.name) for t in tables], self.name)
            require_capability(self, "pauses_tables", hint=f"venus {command} --target {self.name}")
        self._folder.set_paused(paused=command == "pause")
        return CommandResult(table=None, states=dict.fromkeys([t.name for t in tables], state))

    def resync(self, table: str | None) -> CommandResult:
        tables = self._require_manifest().tables.values()
        meant = (
            find_named_table(table, [accepted_names(t.name) for t in tables], self.name) if table is not None else None
        )
        chosen = [t for t in tables if meant in (None, t.name)]
        for one in chosen:
            self._folder.request_resync(one.table_id)
        return CommandResult(table=meant, states=dict.fromkeys([t.name for t in chosen], "RESYNCING"))

    def _require_manifest(self) -> LakeManifest:
        """Return the manifest. Raises an error if the lake was never loaded."""
        found = self._folder.read_manifest()
        if found is None:
            raise self._folder.not_loaded_error
        return found


def accepted_names(qualified_name: str) -> tuple[str, ...]:
    """Return the names that an operator may use for a table: with and without its schema."""
    return qualified_name, qualified_name.partition(".")[2]


def build_view(
    name: str, manifest: LakeManifest, *, place: str, paused: bool, resyncing: set[int], now_us: int
) -> TargetView:
    """Return the state of a folder, from its manifest, as `venus status` shows it."""
    notes = [f"{t.name} {t.note}" for t in manifest.tables.values() if t.note and not manifest.is_halted(t)]
    return TargetView(
        name=name,
        group=manifest.group,
        place=place,
        loaded=True,
        paused=paused,
        offset=manifest.offset,
        applied_sequence=manifest.sequence,
        applied_age_s=age_s(manifest.applied_at_us, now_us),
        heartbeat_age_s=age_s(manifest.heartbeat_us, now_us),
        heartbeat_at_us=manifest.heartbeat_us,
        unaccounted_rows=manifest.unaccounted_changes,
        note="; ".join(notes),
        tables=tuple(
            TargetTable(
                table_id=t.table_id,
                name=t.name,
                state=table_state(manifest, t, resyncing),
                reason=t.note if manifest.is_halted(t) else "",
                rows_applied=t.rows_applied,
                held=t.rows_held,
                columns=describe_masks(manifest.schema(t.table_id, t.schema_version)),
            )
            for t in manifest.tables.values()
        ),
    )


def check_text_columns(where: str, schemas: Seq[TableSchema]) -> list[Finding]:
    """Return a finding for the columns that become text because no Parquet type holds their values exactly."""
    lines = [
        f"{schema.qualified_name}.{column.name} ({column.source_type})"
        for schema in schemas
        if not schema.is_heartbeat
        for column in schema.columns
        if arrow_rows.becomes_text(column.type)
    ]
    if not lines:
        return []
    message = f"{len(lines)} columns become text: Parquet has no type that holds their values exactly"
    remedy = "read them as text, or change the columns' types (Oracle: --type-map)"
    return [Finding(where=where, message=message, remedy=remedy, details=tuple(lines))]
