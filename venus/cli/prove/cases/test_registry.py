"""The registry of captured tables: a process notices that another one has changed it."""

from __future__ import annotations

import pytest

from venus.adapters.dialects.contract import Source
from venus.adapters.dialects.proving_contract import Application, Place
from venus.adapters.dialects.registry_rules import confirm_identity, describe_identity
from venus.cli.prove.follower import Follower
from venus.errors import Diverged


def test_the_sign_changes_with_all_that_registered_shows_and_with_nothing_else(
    place: Place, app: Application, item: Follower, source: Source
) -> None:
    table_id = item.table_id("item")

    def changes_fingerprint(change: object = None) -> bool:
        """Return whether a change also changes the fingerprint of the registry."""
        before, shown = source.registry.read_registry_fingerprint(), source.registry.read_registered_tables()
        if callable(change):
            change()
        changed = source.registry.read_registry_fingerprint() != before
        assert changed or source.registry.read_registered_tables() == shown
        return changed

    assert not changes_fingerprint()
    assert not changes_fingerprint(source.capture.write_heartbeat)
    assert changes_fingerprint(lambda: source.registry.set_table_state(table_id, "PAUSED", ""))
    assert changes_fingerprint(lambda: source.registry.set_table_state(table_id, "PAUSED", "by hand"))
    assert changes_fingerprint(lambda: source.registry.set_table_state(table_id, "ACTIVE", ""))
    assert changes_fingerprint(lambda: source.capture.restart_fill(table_id))
    assert changes_fingerprint(item.drain), "the fill has ended"
    app.execute(f"ALTER TABLE item ADD extra {place.types['int']}")
    app.commit()
    assert changes_fingerprint(source.capture.refresh_schemas), "a new version"
    app.execute(f"CREATE TABLE other (id {place.types['int']} NOT NULL PRIMARY KEY)")
    app.commit()
    assert changes_fingerprint(lambda: source.installer.install(["*"], []))


@pytest.mark.usefixtures("item")
def test_another_database_is_refused_until_it_is_confirmed_and_another_server_is_named(source: Source) -> None:
    assert confirm_identity(source.registry) == ""
    identity = source.registry.read_identity()
    if identity is None:
        assert source.name == "sqlite", "only a file has nothing that distinguishes it from its copies"
        return
    here = dict(identity.present)
    assert identity.recorded == here
    decisive = next(group for group in identity.decisive if set(group) <= here.keys())
    for fact in decisive:
        source.registry.store_identity({**here, fact: "elsewhere"})
        with pytest.raises(
            Diverged, match=rf"it is not the database that was captured \({fact} {here[fact]}, was elsewhere\)"
        ) as refused:
            confirm_identity(source.registry)
        assert "`venus install-triggers --moved`" in refused.value.hint
        assert f"{fact} {here[fact]}, was elsewhere" in describe_identity(source.registry.read_identity())
        confirm_identity(source.registry, moved=True)
        assert confirm_identity(source.registry) == ""
    for fact in here.keys() & set(identity.doubtful):
        source.registry.store_identity({**here, fact: "elsewhere"})
        for _ in range(2):  # the warning stays until it is confirmed
            assert f"({fact} {here[fact]}, was elsewhere)" in confirm_identity(source.registry)
        confirm_identity(source.registry, moved=True)
        assert confirm_identity(source.registry) == ""
