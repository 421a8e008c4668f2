"""The documents name only existing commands, options, files and links, and quote only messages of the product."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import venus.broker.service.metrics
import venus.broker.service.traffic_status
import venus.broker.status.broker_status
import venus.cli
from tests.support.product_messages import missing_fragments
from tests.support.reference_pages import pages, promises
from tests.unit.test_cli import commands
from venus.config import load, options

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
#: Instructions for users; explanation is for readers of the code.
PAGES = [path for path in DOCUMENTS if path.parent.name in ("tutorial", "how-to", "troubleshooting", "reference")]
GUIDES = "".join(path.read_text() for path in (ROOT / "README.md", *PAGES))
TROUBLESHOOTING = sorted((ROOT / "docs" / "troubleshooting").glob("*.md"))
#: Messages of other programs that a heading quotes.
FOREIGN = {
    "password authentication failed": "PostgreSQL",
    "Access denied": "MariaDB, MySQL",
    "Unknown database": "MariaDB, MySQL",
    "could not translate host name": "libpq",
    "no pg_hba.conf entry": "PostgreSQL",
    'You might need to increase "max_locks_per_transaction"': "PostgreSQL",
    "mvcc: database space exceeded": "etcd",
    "Corruption": "RocksDB",
}
#: Headings about messages with more than one word in common.
UNQUOTED = {
    "A load says `waits` and a reason",
    "A business that is a mistake, or long gone",
    'A session "venus capture" is active all the time',
}
#: Options in the URL of a source, whose names look like metrics.
URL_OPTIONS = {"venus_schemas", "venus_rac", "venus_triggers", "venus_watch", "venus_always", "venus_zero_dates"}


@pytest.mark.parametrize("command", commands())
def test_every_command_is_in_the_guides(command: str) -> None:
    group, _, sub = command.partition(" ")
    listed = [rf"venus {command}\b", rf"`venus {group} list`(, `\w+[^`]*`)*, `{sub}[ `]"]

    assert any(re.search(pattern, GUIDES) for pattern in listed if sub or pattern == listed[0]), command


def test_every_command_in_the_documents_exists() -> None:
    known = {command.split()[0] for command in commands()}
    named = {
        found
        for document in DOCUMENTS
        for found in re.findall(r"(?:^\$ |`)venus (?:-\S+ )*([a-z][a-z-]+)", document.read_text(), re.MULTILINE)
    }

    assert named - known == set()


def test_every_command_in_hints_and_messages_exists() -> None:
    known = set(commands())
    texts = [path.read_text() for folder in PRODUCT for path in (ROOT / folder).rglob("*.py")]
    named = {found for text in texts for found in re.findall(r"`venus ([a-z][a-z-]+)(?: ([a-z][a-z-]+))?", text)}

    assert len(named) >= 30
    groups = {command.split()[0] for command in known if " " in command}
    assert {" ".join(n) for n in named if n[0] not in groups and n[0] not in known} == set()
    assert {" ".join(n) for n in named if n[0] in groups and n[1] and " ".join(n) not in known} == set()


def test_every_option_of_a_command_in_the_documents_exists() -> None:
    code = "".join(path.read_text() for path in Path(venus.cli.__file__).parent.rglob("*.py"))
    used = set(re.findall(r"venus [a-z-]+[^`\n]*?(--[a-z][a-z-]+)", GUIDES))

    assert {option for option in used if f'"{option}"' not in code} == set()


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_have_an_existing_target(document: Path) -> None:
    links = [link for link in re.findall(r"\]\(([^)#]+)", document.read_text()) if "://" not in link]

    generated = {
        (ROOT / "docs" / "reference" / name).resolve() for name in pages() if document.is_relative_to(ROOT / "docs")
    }
    places = {link: (document.parent / link).resolve() for link in links}
    assert [link for link, place in places.items() if not place.exists() and place not in generated] == []


#: A Python file, named with or without its folders; not a part of a pattern or of a longer name.
_FILE = re.compile(r"(?<![\w.\"'/*{}<>-])(?:[\w-]+/)*[a-z_0-9]+\.py\b")
PRODUCT = ("venus", "adapters", "spark", "migrations")


def missing_files(text: str, there: set[str]) -> list[str]:
    """Return the Python files that a text names and the repository does not have."""
    return [name for name in _FILE.findall(text) if not any(f"/{path}".endswith(f"/{name}") for path in there)]


@pytest.mark.parametrize("document", [path for path in DOCUMENTS if "8<" in path.read_text().replace(" ", "")], ids=str)
def test_included_files_exist(document: Path) -> None:
    """The site shows an include that is not written exactly so as text."""
    lines = [line for line in document.read_text().splitlines() if "8<-" in line.replace(" ", "")]
    for line in lines:
        found = re.fullmatch(r'--8<-- "(.+)"', line)
        assert found, line
        assert (ROOT / found[1]).is_file(), line


def test_missing_files_are_found() -> None:
    text = "see queue/reader.py, `reader.py` and lag.py; not test_*.py, <db>/cut.py or https://a.example/b.py"

    assert missing_files(text, {"venus/broker/queue/reader.py"}) == ["lag.py"]


def test_named_python_files_exist() -> None:
    folders = (*PRODUCT, "tests", "bench", "docker")
    python = [path for folder in folders for path in (ROOT / folder).rglob("*.py")] + list(ROOT.glob("*.py"))
    there = {str(path.relative_to(ROOT)) for path in python}
    texts = [path for folder in PRODUCT for kind in ("*.py", "*.sql") for path in (ROOT / folder).rglob(kind)]
    texts += [path for path in DOCUMENTS if path.name != "CHANGELOG.md"]

    missing = {str(path.relative_to(ROOT)): missing_files(path.read_text(), there) for path in texts}
    assert {path: names for path, names in missing.items() if names} == {}


def test_every_example_configuration_loads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    examples = re.findall(r"```toml\n(.*?)```", GUIDES, re.DOTALL)

    assert len(examples) >= 3
    for number, example in enumerate(examples):
        file = tmp_path / f"{number}.toml"
        file.write_text(example)
        load(file)


def test_named_metrics_and_options_exist() -> None:
    files = (venus.broker.service.metrics.__file__, venus.broker.service.traffic_status.__file__)
    source = "".join(Path(file).read_text() for file in files)
    metrics = set(re.findall(r'"(venus_[a-z_]+)"', source)) | URL_OPTIONS | {"venus_table_changes_total"}
    metrics |= {"venus_alarm_messages_total", "venus_braked_total", "venus_braked_seconds_total"}
    metrics |= {f"{name}_total" for _, name, _, _ in venus.broker.service.traffic_status.GAUGES}
    metrics |= {f"venus_{name}_total" for name in venus.broker.status.broker_status.COUNTERS}
    metrics |= {f"{name}_total" for name, _ in venus.broker.service.metrics.SECURITY_COUNTERS}
    leaves = {path.rpartition(".")[2] for path in options()} | metrics

    assert set(re.findall(r"`(?:time\(\) - )?(venus_[a-z_]+)`", GUIDES)) - metrics == set()
    assert (
        set(re.findall(r"`([a-z]+_[a-z_]*(?:_s|_ms|_bytes|_bytes_max|_bytes_min|_rows_max))`", GUIDES)) - leaves
        == set()
    )


def test_named_make_targets_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {
        name
        for document in DOCUMENTS
        for name in re.findall(r"(?:\$ |`|^)make ([a-z-]+)", document.read_text(), re.MULTILINE)
    }

    assert named - targets == set()


def test_every_threat_names_tests_that_exist() -> None:
    named = [
        found
        for threat in promises()["threat"]
        for found in re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", threat["proved_by"])
    ]

    assert len(named) >= 20
    for file, name in named:
        assert not name or f"def {name}(" in (ROOT / file).read_text(), f"{file}::{name}"


def test_every_scenario_names_tests_that_exist() -> None:
    rows = [(each["number"], each["proved_by"]) for each in promises()["scenario"]]
    wanted = range(1, 81)

    assert set(wanted) - {int(number) for number, _ in rows if number.isdigit()} == set()
    for number, tests in rows:
        for file, name in re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", tests):
            assert (ROOT / file).is_file(), f"scenario {number}: {file}"
            assert not name or f"def {name}(" in (ROOT / file).read_text(), f"scenario {number}: {file}::{name}"


@pytest.mark.parametrize("page", TROUBLESHOOTING, ids=lambda path: path.name)
def test_headings_of_troubleshooting_quote_messages_of_the_product(page: Path) -> None:
    headings = re.findall(r"^### (.+)$", page.read_text(), re.MULTILINE)
    quoted = {heading: re.findall(r"`([^`]+)`", heading) for heading in headings if heading not in UNQUOTED}

    assert [heading for heading, messages in quoted.items() if not messages] == []
    messages = [message for each in quoted.values() for message in each if message not in FOREIGN]
    assert {message: gone for message in messages if (gone := missing_fragments(message))} == {}


def test_a_heading_that_quotes_no_message_of_the_product_is_found() -> None:
    assert missing_fragments("TABLE is HALTED (the key has moved from (...) to (...))") == ["the key has moved from"]
    assert missing_fragments("TABLE is DORMANT") == ["DORMANT"]
    assert missing_fragments("N changes below its offset are unaccounted for") == []


def test_documents_named_in_messages_exist() -> None:
    """A hint with a missing document is worse than none."""
    texts = [path for folder in PRODUCT for kind in ("*.py", "*.sql") for path in (ROOT / folder).rglob(kind)]
    texts += [ROOT / "venus.example.toml", *(ROOT / "docker").rglob("*.yaml"), *(ROOT / "docs").rglob("*.yaml")]
    there = {f"docs/reference/{name}" for name in pages()}
    named = {(name, path) for path in texts for name in re.findall(r"\bdocs/[\w/.-]*\w", path.read_text())}

    assert len(named) >= 20
    assert sorted((name, path) for name, path in named if name not in there and not (ROOT / name).exists()) == []


def test_every_page_is_in_the_navigation() -> None:
    docs = ROOT / "docs"
    navigation = (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")[2]
    shown = re.findall(r": ([\w/-]+\.md)$|^ *- ([\w/-]+\.md)$", navigation, re.MULTILINE)
    listed = [titled or bare for titled, bare in shown]
    every = {path.relative_to(docs).as_posix() for path in docs.rglob("*.md")} | {f"reference/{n}" for n in pages()}

    assert sorted(listed) == sorted(every)


def test_the_options_page_has_every_option() -> None:
    page = pages()["options.md"]

    assert [path for path in options() if f"| `{path.rpartition('.')[2]}` |" not in page and "NAME" not in path] == []


def test_the_metrics_page_has_every_metric_that_the_guides_name() -> None:
    page = pages()["metrics.md"]
    named = set(re.findall(r"`(?:time\(\) - )?(venus_[a-z_]+)`", GUIDES)) - URL_OPTIONS

    assert {name for name in named if f"`{name}`" not in page} == set()


def test_every_piece_of_evidence_for_oracle_names_tests_that_exist() -> None:
    text = (ROOT / "tests" / "oracle_evidence.toml").read_text()
    named = set(re.findall(r"\btests/[\w/]+\.py", text))

    assert len(named) >= 10
    assert sorted(name for name in named if not (ROOT / name).exists()) == []


#: Size of all Markdown of the repository: repetitions and explanations of one module do not belong there.
MARKDOWN_BYTES_MAX = 250_000


def test_the_documents_stay_below_their_limit() -> None:
    texts = [*ROOT.glob("*.md"), *(p for f in ("docs", "bench", "tests") for p in (ROOT / f).rglob("*.md"))]

    assert sum(path.stat().st_size for path in texts) <= MARKDOWN_BYTES_MAX


def test_readme_and_glossary_stay_short() -> None:
    readme = (ROOT / "README.md").read_text().splitlines()
    terms = re.findall(r"^\| (?!term |---)", (ROOT / "docs/explanation/glossary.md").read_text(), re.MULTILINE)

    assert len(readme) <= 150
    assert 40 <= len(terms) <= 60
