"""What every test may ask for."""

pytest_plugins = [
    "tests.support.lifetimes",
    "tests.support.mariadb",
    "tests.support.plsql",
    "tests.support.postgres",
    "tests.support.second_try",
    "tests.support.sparks",
]
