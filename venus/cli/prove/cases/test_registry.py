"""The registry as other processes write it: what `registered` shows, and the sign that it shows something else."""

from __future__ import annotations

from venus.adapters.dialects.contract import Source
from venus.adapters.dialects.proving_contract import Application, Place
from venus.cli.prove.follower import Follower


def test_the_sign_changes_with_all_that_registered_shows_and_with_nothing_else(
    place: Place, app: Application, item: Follower, source: Source
) -> None:
    table_id = item.table_id("item")

    def signs(change: object = None) -> bool:
        before, shown = source.registry.read_registry_fingerprint(), source.registry.read_registered_tables()
        if callable(change):
            change()
        changed = source.registry.read_registry_fingerprint() != before
        assert changed or source.registry.read_registered_tables() == shown
        return changed

    assert not signs()
    assert not signs(source.capture.write_heartbeat)
    assert signs(lambda: source.registry.set_table_state(table_id, "PAUSED", ""))
    assert signs(lambda: source.registry.set_table_state(table_id, "PAUSED", "by hand"))
    assert signs(lambda: source.registry.set_table_state(table_id, "ACTIVE", ""))
    assert signs(lambda: source.capture.restart_fill(table_id))
    assert signs(item.drain), "the fill has ended"
    app.execute(f"ALTER TABLE item ADD extra {place.types['int']}")
    app.commit()
    assert signs(source.capture.refresh_schemas), "a new version"
    app.execute(f"CREATE TABLE other (id {place.types['int']} NOT NULL PRIMARY KEY)")
    app.commit()
    assert signs(lambda: source.installer.install(["*"], []))
