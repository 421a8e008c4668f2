"""A relational target whose DDL ends the transaction (VENUS 3.4): it runs in steps, each of which may be repeated.

VENUS records what it is about to create or alter (`intent`), runs the DDL, and registers the result in the transaction
that needs it. A process that is killed between these steps leaves an intent, from which the next process knows that the
table is VENUS's own, and continues. A transaction that needs DDL raises `DdlNeeded`: the apply loop rolls back, the DDL
runs, and the cut is applied again. So a table may briefly have a newer version than its rows, but a cut is never
applied in part.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence

from venus.adapters.targets.predicates import predicate_text
from venus.adapters.targets.relational.catalogue import TargetCatalogue
from venus.adapters.targets.relational.own_tables import OwnPlace, OwnSession, OwnSql, TablePlace
from venus.adapters.targets.relational.place import VersionStep
from venus.adapters.targets.relational.row_database import HINT, RowDatabase
from venus.adapters.targets.relational.session import DdlNeeded, transaction
from venus.adapters.targets.relational.states import ACTIVE, HALTED, TableState
from venus.errors import Refused, TargetError
from venus.masking.projection import source_of
from venus.model import TableSchema
from venus.predicates.ranges import compile_predicate
from venus.predicates.syntax import PredicateRefused


def created_intent(placed: TablePlace) -> str:
    """Return the name of the intent to create a table."""
    return f"table {placed.name}"


def version_intent(schema: TableSchema) -> str:
    """Return the name of the intent to bring a table to a version."""
    return f"version {schema.version}"


class SteppedDatabase(RowDatabase):
    """A database that is target `name` of the configuration, and whose DDL ends the transaction."""

    # -- methods of a kind ---------------------------------------------------------------------------------------------

    @abstractmethod
    def create_statements(self, session: OwnSession, placed: OwnPlace) -> list[str]:
        """Return the statements that create a table with its key; each may be repeated."""

    @abstractmethod
    def missing_indexes(self, session: OwnSession, placed: OwnPlace) -> list[str]:
        """Return the statements that create the indexes which the table does not have."""

    @abstractmethod
    def plan(
        self, session: OwnSession, catalogue: TargetCatalogue, schema: TableSchema, *, has_begun: bool, rekeying: bool
    ) -> VersionStep:
        """Return the step of a table to a version. `has_begun`: some of the step's statements may have run.

        `rekeying`: all rows are replaced, so that the names of the key may change.
        """

    @abstractmethod
    def has_other_columns(self, session: OwnSession, placed: OwnPlace) -> bool:
        """Return whether the columns of a table that VENUS has created differ from those that a load needs."""

    def forget_dictionary(self) -> None:
        """Forget the descriptions read of the application's tables, because DDL changes them."""

    # -- tables --------------------------------------------------------------------------------------------------------

    def read_intents(self, session: OwnSession) -> set[tuple[int, str]]:
        """Return the intents: names of the objects that VENUS has begun to create or alter."""
        return {(table_id, name) for table_id, name in self.read_own_rows(session, "intents")}

    def create_table(self, session: OwnSession, placed: OwnPlace, *, with_indexes: bool) -> None:
        """Write the intent and create the table. May be repeated; runs outside a transaction."""
        self.run_own(session, "put_intent", table_id=placed.schema.table_id, name=created_intent(placed))
        for text in self.create_statements(session, placed):
            session.run(text)
        if with_indexes:
            self.add_indexes(session, placed)

    def add_indexes(self, session: OwnSession, placed: OwnPlace) -> list[str]:
        """Create the missing indexes; return what the target rejects."""
        return try_all(session, self.missing_indexes(session, placed))

    def find_differences(self, session: OwnSession) -> dict[str, tuple[str, ...]]:
        return {}

    def store_version(self, session: OwnSession, schema: TableSchema, known: TableSchema | None) -> None:
        self.put_schema(session, schema)

    def create_stream_table(self, session: OwnSession, schema: TableSchema, offset: int) -> None:
        """Register a table that is new in the stream. Raises DdlNeeded if the table has to be created first."""
        placed = self.place(schema)
        predicate = predicate_text(self.config.where, schema.qualified_name)
        is_own = (schema.table_id, created_intent(placed)) in self.read_intents(session)
        try:
            if predicate:
                compile_predicate(predicate, source_of(schema))
            self.place_all([schema])
            if not is_own:
                self.refuse_existing(session, [placed])
        except (Refused, PredicateRefused) as refused:
            self.put_halted(session, placed, offset, "; ".join(str(refused).split("\n")), predicate)
            return
        if not self.has_table(session, placed):
            raise DdlNeeded(f"creating {schema.qualified_name}", lambda: self._create_table(session, placed, offset))
        if not is_own and self.config.on_existing == "truncate":
            session.run(self.row_sql(schema).text("delete_all"))
        self.put_table(session, placed, ACTIVE, offset, created=is_own, predicate=predicate)
        if is_own and (missing := self.missing_indexes(session, placed)):
            reason = "; ".join(f"the target has rejected: {text}" for text in missing)
            self.run_own(session, "set_version", table_id=schema.table_id, version=schema.version, reason=reason)

    def _create_table(self, session: OwnSession, placed: OwnPlace, offset: int) -> None:
        """Create a table, outside a transaction; a table that cannot be created halts."""
        self.forget_dictionary()
        try:
            self.create_table(session, placed, with_indexes=True)
        except TargetError as error:
            predicate = predicate_text(self.config.where, placed.schema.qualified_name)
            with transaction(session):
                self.put_schema(session, placed.schema)
                self.put_halted(session, placed, offset, str(error), predicate)
                self.run_own(session, "raise_control")

    def plan_step(
        self, session: OwnSession, catalogue: TargetCatalogue, schema: TableSchema, *, rekeying: bool = False
    ) -> VersionStep:
        """Return the step from a table's current version to this one. Raises DdlNeeded if the step has statements."""
        step = self._plan(session, catalogue, schema, rekeying=rekeying)
        if step.statements and not step.refused:
            raise DdlNeeded(
                f"bringing {schema.qualified_name} to version {schema.version}",
                lambda: self._alter_table(session, catalogue, schema, step, rekeying=rekeying),
            )
        return step

    def _plan(
        self, session: OwnSession, catalogue: TargetCatalogue, schema: TableSchema, *, rekeying: bool
    ) -> VersionStep:
        """Return the step of a table to a version; a refusal if its names are impossible at the target."""
        try:
            self.place_all([schema])
        except Refused as refused:
            return VersionStep(refused="; ".join(str(refused).split("\n")))
        has_begun = (schema.table_id, version_intent(schema)) in self.read_intents(session)
        return self.plan(session, catalogue, schema, has_begun=has_begun, rekeying=rekeying)

    def _alter_table(
        self,
        session: OwnSession,
        catalogue: TargetCatalogue,
        schema: TableSchema,
        step: VersionStep,
        *,
        rekeying: bool,
    ) -> None:
        """Alter a table, outside a transaction; a table that cannot be altered halts."""
        table_id, sql = schema.table_id, self.row_sql(schema)
        self.forget_dictionary()
        try:
            self.run_own(session, "put_intent", table_id=table_id, name=version_intent(schema))
            if not catalogue.current_schema(table_id).has_same_key(schema):  # that table has the key's old names
                session.run(sql.text("drop_touched"))
            for text in step.statements:
                session.run(text)
            if not catalogue.is_recording(table_id):  # that table has the old types of the key
                session.run(sql.text("drop_touched"))
            left = self._plan(session, catalogue, schema, rekeying=rekeying).statements
            problem = f"{'; '.join(left)}: the table is not as it should be afterwards" if left else ""
        except TargetError as error:
            problem = str(error)
        if problem:
            with transaction(session):
                self.set_state(session, table_id, HALTED, held_from=catalogue.position.offset, reason=problem)
                self.run_own(session, "raise_control")

    # -- keys of changed rows ------------------------------------------------------------------------------------------

    def start_recording(self, session: OwnSession, sql: OwnSql, *, is_recording: bool) -> None:
        """Begin with an empty record of changed keys, unless another purpose records them already."""
        if not is_recording:
            self.forget_recorded(session, sql)

    def forget_recorded(self, session: OwnSession, sql: OwnSql) -> None:
        """Empty the table of recorded keys, within a transaction. Raises DdlNeeded if that table has to be created."""
        if session.row(sql.text("find_touched")) is None:
            what = f"recording changed keys of {sql.placed.qualified_name}"
            raise DdlNeeded(what, lambda: self._make_touched(session, sql))
        session.run(sql.text("forget_touched"))

    def _make_touched(self, session: OwnSession, sql: OwnSql) -> None:
        """Create the table of recorded keys, in place of an older one."""
        session.run(sql.text("drop_touched"))
        session.run(sql.text("create_touched"))

    def end_recording(self, session: OwnSession, sql: OwnSql) -> None:
        if session.row(sql.text("find_touched")) is not None:
            session.run(sql.text("forget_touched"))

    # -- load ----------------------------------------------------------------------------------------------------------

    def prepare_load(self, session: OwnSession, placed: Sequence[OwnPlace]) -> None:
        """Create the tables that a load needs, in place of VENUS's own tables with other columns."""
        known = {t.name: t for t in self.read_tables(session)}
        intents = self.read_intents(session)
        begun = [one for one in placed if (one.schema.table_id, created_intent(one)) in intents]
        self.refuse_existing(session, [one for one in placed if one.name not in known and one not in begun])
        for one in placed:
            is_there = self.has_table(session, one)
            is_own = one in begun or (one.name in known and known[one.name].created)
            if is_there and is_own and self.has_other_columns(session, one):
                self.run_own(session, "remove_position")  # first: without its rows, the target is not loaded
                session.run(f"DROP TABLE {one.sql}")
                is_there = False
            if not is_there:
                self.create_table(session, one, with_indexes=False)

    def make_tables(
        self, session: OwnSession, placed: Sequence[OwnPlace], before: Mapping[tuple[str, str], TableState]
    ) -> set[int]:
        """Empty the tables of a load; return those that VENUS has created."""
        intents = self.read_intents(session)
        created: set[int] = set()
        for one in placed:
            known = before.get((one.namespace, one.name))
            is_own = (one.schema.table_id, created_intent(one)) in intents
            if is_own or (known is not None and known.created):
                created.add(one.schema.table_id)
            if is_own or known is not None or self.config.on_existing == "truncate":
                session.run(f"DELETE FROM {one.sql}")
        return created

    def find_obstacles(self, session: OwnSession, placed: Sequence[OwnPlace]) -> list[tuple[str, str, str]]:
        """Return why existing tables that are not VENUS's own cannot be used: (table, message, remedy)."""
        installed = self.is_installed(session)
        own = {t.name for t in self.read_tables(session)} if installed else set()
        intents = self.read_intents(session) if installed else set()
        return [
            (one.schema.qualified_name, f"is there already: {line}", HINT)
            for one in placed
            if one.name not in own and (one.schema.table_id, created_intent(one)) not in intents
            for line in self.check_existing(session, one)
        ]


def try_all(session: OwnSession, statements: Sequence[str]) -> list[str]:
    """Run statements; return those that the target rejects, with the reason."""
    rejected = []
    for text in statements:
        try:
            session.run(text)
        except TargetError as error:
            rejected.append(f"{text}: {error}")
    return rejected
