"""The demo's proof of `venus verify`: somebody writes to a target; what was written is found, named and repaired."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import psycopg2
import sqlalchemy as sa

from venus.cli.demo.postgres import DemoFailed
from venus.cli.demo.servers import Commands

#: What somebody does there, with what `venus verify` must say of it.
_DAMAGE = {
    "UPDATE customers SET balance = balance + 0.01 WHERE id = 7": ("main.customers", "different", "apply"),
    "DELETE FROM order_lines WHERE (order_id, line_no) = (SELECT order_id, line_no FROM order_lines LIMIT 1)": (
        "main.order_lines", "missing", "apply",
    ),
    "INSERT INTO products (sku, name, price, stock, active) VALUES ('GHOST', 'g', 1, 1, true)": (
        "main.products", "extra", "apply",
    ),
}  # fmt: skip


def found_and_repaired(commands: Commands, target: str, url: str, engine: str) -> dict[str, Any]:
    """Damage a target, have verify find and repair it, and return the document of a second comparison, by `engine`."""
    with closing(psycopg2.connect(sa.make_url(url).set(drivername="postgresql").render_as_string(False))) as connection:
        with connection.cursor() as cursor:
            cursor.execute("SET session_replication_role = replica")
            for statement in _DAMAGE:
                cursor.execute(statement)
                if cursor.rowcount != 1:
                    raise DemoFailed(f"the target could not be damaged: {statement}")
        connection.commit()
    found = commands.run("verify", "--target", target, "--repair", "--wait-s", "60", codes=(0, 1, 3))
    said = sorted((f["table"], f["kind"], f["fault"]) for f in found["findings"])
    if said != sorted(_DAMAGE.values()) or found["repair"]["repaired"] != len(_DAMAGE):
        raise DemoFailed(f"verify did not find and repair exactly what was planted: {said}, {found['repair']}")
    document: dict[str, Any] = commands.run(
        "verify", "--target", target, "--leg", "all", "--engine", engine, codes=(0, 1, 3)
    )
    return document
