"""The data source understands the examples of docs/how-to/spark-jobs.md; a slow test runs them."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from venus.spark.datasource_options import DataSourceOptions

TEXT = (Path(__file__).parents[3] / "docs" / "how-to" / "spark-jobs.md").read_text()
EXAMPLES = re.findall(r"^```python\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)


def options_of(example: str) -> dict[str, str]:
    """Return the options that an example passes to the source, for a batch or a stream."""
    given: dict[str, str] = {}
    for call in ast.walk(ast.parse(example)):
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
            continue
        if '"venus"' not in ast.unparse(call).replace("'", '"'):
            continue  # options of another source, or of a sink
        if call.func.attr == "option":
            name, value = map(ast.literal_eval, call.args)
            given[name] = value
        if call.func.attr == "options":
            given |= {str(word.arg): ast.literal_eval(word.value) for word in call.keywords}
    return given


@pytest.mark.parametrize("example", EXAMPLES, ids=["full data", "changes"])
def test_an_example_uses_existing_options(example: str) -> None:
    given = options_of(example)
    assert given["address"] == "127.0.0.1:7400"
    options = DataSourceOptions.of(given)
    assert options.table == given["table"]
    assert options.starting == given.get("starting", "")
