"""What every test may ask for."""

import os

#: Whoever starts pytest may have a terminal; what a command prints into a pipe must not depend on its width.
os.environ.pop("COLUMNS", None)

pytest_plugins = [
    "tests.support.lifetimes",
    "tests.support.etcd",
    "tests.support.mariadb",
    "tests.support.plsql",
    "tests.support.postgres",
    "tests.support.second_try",
    "tests.support.sparks",
]
