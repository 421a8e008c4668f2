"""`venus cluster dissolve`: several brokers become one again."""

from __future__ import annotations

from typing import Annotated

import typer

from venus.cli.cluster import coordinator_of
from venus.cli.invocation import ConfigOption, Invocation, JsonOption
from venus.errors import ConfigError


def dissolve(
    ctx: typer.Context,
    accept_loss: Annotated[
        bool,
        typer.Option("--accept-loss", help="Do not ask etcd: changes that this broker lacks are lost for good."),
    ] = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> int:
    """Turn a broker of a cluster into one that runs alone, with its data. Run it on the broker's machine.

    Stop every broker of the cluster first, and use this broker's configuration. Refused unless this replica is known
    to have everything. Afterwards remove [cluster] from the configuration and start the broker. The others delete
    their copies if they join again.
    """
    from venus.broker.replicas.dissolving import dissolve as dissolve_at

    run = Invocation.of(ctx, config, as_json)
    cluster, data_dir = run.settings.cluster, run.settings.broker.data_dir.resolve()
    if not cluster.name:
        raise ConfigError(
            "there is no cluster: [cluster] name is not set",
            hint="leave [cluster] in the configuration until this command has ended",
        )
    if accept_loss:
        done = dissolve_at(data_dir, cluster.broker_id, None)
    else:
        with coordinator_of(run.settings) as coordinator:
            done = dissolve_at(data_dir, cluster.broker_id, coordinator)
    already = "was in no cluster" if done.member is None else "belongs to no cluster any more"
    line = f"{data_dir} {already}: remove [cluster] from the configuration and start the broker"
    document = {"data_dir": data_dir, "businesses": list(done.businesses), "checked": not accept_loss}
    run.out.answer(document, line)
    return 0
