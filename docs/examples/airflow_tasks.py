"""Airflow or Dagster: a function for each task, to decorate with `@task` or `@op`.

With `own_broker=False` every task uses the `venus broker` that the configuration names, from any worker.
"""

from venus.errors import Refused
from venus.pipeline import Pipeline


def open_pipeline() -> Pipeline:
    return Pipeline.from_toml("venus.toml")


def check() -> list[str]:
    report = open_pipeline().check()
    if report.blocking:
        raise Refused(report.blocking[0].message, hint=report.blocking[0].remedy)
    return list(report.tables)


def load() -> int:
    with open_pipeline() as pipeline:
        pipeline.install()
        return sum(pipeline.migrate().load.rows.values())


def follow(seconds: float) -> dict[str, str]:
    return dict(open_pipeline().run(for_s=seconds).problems)  # {} = nothing had to be waited out


def verify() -> str:
    return open_pipeline().verify().verdict.name
