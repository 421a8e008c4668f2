"""The language of the code: what a function, a class and a sentence may be called.

A function that acts is a verb, one that answers is a noun or a question, one that handles an event begins with `on_`; a
bare participle (`applied`, `seen`) is none of these. A public class name occurs once. Some words make persons of
components; they stand nowhere.
"""

from __future__ import annotations

import ast
import builtins
import io
import re
import tokenize
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CODE = ("venus", "adapters", "spark", "migrations", "bench")
EVERYTHING = (*CODE, "tests", "docs")
#: Words for components that no component is.
BANNED = ("whoever", "somebody", "nobody", "told", "untold", "whom")
_BANNED = re.compile(rf"(?<![a-z])(?:{'|'.join(BANNED)})(?![a-z])", re.IGNORECASE)
#: Phrases that are literal translations; no text contains one.
TRANSLATED = (
    "go on",
    "goes on",
    "going on",
    "went on",
    "gone on",
    "for good",
    "come behind",
    "comes behind",
    "by turns",
    "anew",
    "= there is no such",
    "if there is no such",
)
_TRANSLATED = re.compile(rf"(?<![a-z])(?:{'|'.join(TRANSLATED)})(?![a-z])")
#: Participles and past tenses that do not end in -ed. Those that are infinitives too (`read`, `put`, `set`) are verbs.
IRREGULAR = frozenset(
    re.findall(
        r"\w+",
        """
    begun bent born borne bought broken brought built caught chosen dealt done drawn driven dug eaten
    fallen fed felt forgotten fought found frozen given gone got grown had heard held hidden hung hurt kept
    known laid led left lent lit lost made meant met overcome overdone overtaken paid proven redone ridden
    risen rung said sat seen sent shaken shot shown slept slid sold sought spent spoken spun stolen stood
    stuck struck sworn swum swung taken taught thought thrown told torn undone understood undrawn untold
    withdrawn withheld woken won worn written

    ate became began came chose drew drove fell flew forgot froze gave grew hid knew ran rang rode rose sang sank saw
    spoke stole swam swore threw took tore went woke wore wrote
""",
    )
)
#: Words in -ed that are no participles.
NOT_PARTICIPLES = frozenset(
    re.findall(r"\w+", "bed bleed breed embed exceed feed heed indeed need proceed red seed shed speed succeed weed")
)
#: Base classes in venus/errors.py whose names do not end in "Error".
EXCEPTIONS_OF_VENUS = frozenset(("Refused", "Unavailable", "Diverged"))
#: Names in files and logs, which do not change.
FILE_WORDS = frozenset(('"told_s"', '"nobody"'))
#: Code in a document names what is there; `tests/unit/test_docs.py` checks it.
_CODE_SPAN = re.compile(r"`[^`]*`")


def python_files(folders: Iterable[str] = CODE) -> Iterator[Path]:
    """Yield the Python files of folders, without generated ones; each once, not by links in venus/ too."""
    for folder in folders:
        for file in sorted((ROOT / folder).rglob("*.py")):
            parts = file.relative_to(ROOT / folder).parts
            if not (folder == "venus" and parts[0] in ("adapters", "spark", "migrations", "wire")):
                yield file


def texts() -> Iterator[Path]:
    """Yield the text files that are not Python: documents, SQL, protos, the page, the example configuration."""
    for folder in ("docs", "docker", "protos", *CODE):
        for pattern in ("*.md", "*.sql", "*.proto", "*.html", "*.js", "*.css", "*.toml", "*.yaml", "*.yml"):
            for file in sorted((ROOT / folder).rglob(pattern)):
                if not (folder == "venus" and file.relative_to(ROOT / folder).parts[0] in ("adapters", "spark")):
                    yield file
    yield from (ROOT / name for name in ("README.md", "CONTRIBUTING.md", "Makefile", "venus.example.toml"))


def is_participle(name: str) -> bool:
    """Return whether a function's or a class's name is one participle and nothing else."""
    word = "" if name.startswith("__") else name.strip("_")
    if not word.isidentifier() or "_" in word or not word[1:].islower():
        return False
    word = word.lower()
    return word in IRREGULAR or (word.endswith("ed") and len(word) > 4 and word not in NOT_PARTICIPLES)


def is_property(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Return whether a function is read like an attribute, which may state a fact."""
    return any("property" in ast.unparse(node) for node in function.decorator_list)


def declared_attributes(tree: ast.AST) -> set[ast.AST]:
    """Return the properties of protocols: they stand for attributes of other classes, which may state facts."""
    return {
        node
        for protocol in ast.walk(tree)
        if isinstance(protocol, ast.ClassDef) and any("Protocol" in ast.unparse(base) for base in protocol.bases)
        for node in protocol.body
        if isinstance(node, ast.FunctionDef) and is_property(node)
    }


def is_exception(node: ast.ClassDef) -> bool:
    """Return whether a class is an exception: it is named after what happened."""
    bases = [base.attr if isinstance(base, ast.Attribute) else getattr(base, "id", "") for base in node.bases]
    return any(base.endswith(("Error", "Exception")) or base in EXCEPTIONS_OF_VENUS for base in bases)


def bare_participles(tree: ast.AST) -> Iterator[str]:
    """Yield the functions and classes, nested ones and properties included, that are called by a participle alone."""
    attributes = declared_attributes(tree)
    for node in ast.walk(tree):
        if node in attributes:
            continue
        if isinstance(node, ast.ClassDef) and is_exception(node):
            continue
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and is_participle(node.name):
            yield node.name


def banned_words(text: str) -> list[str]:
    """Return the banned words of a text, parts of identifiers included (`_told_at`, `WhomToAsk`)."""
    spread = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", text).replace("_", " ")
    return _BANNED.findall(spread)


def translated_phrases(text: str) -> list[str]:
    """Return the literal translations in a text; an identifier has none."""
    return [] if text.isidentifier() else _TRANSLATED.findall(text)


def words_of_python(source: str) -> Iterator[tuple[int, str]]:
    """Yield the line and text of each identifier, string and comment."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type in (tokenize.NAME, tokenize.STRING, tokenize.COMMENT) and token.string not in FILE_WORDS:
            yield token.start[0], token.string


def exceptions_in_docstrings(tree: ast.AST) -> Iterator[str]:
    """Yield the names after "Raise" and "Raises" in docstrings."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Module):
            for names in re.findall(r"\b[Rr]aises? ((?:[A-Z]\w+|,| and| or|\s)+)", ast.get_docstring(node) or ""):
                yield from re.findall(r"[A-Z]\w+", names)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("_told", True),
        ("applied", True),
        ("Seen", True),
        ("read", False),
        ("need", False),
        ("record_applied", False),
        ("on_fetch", False),
        ("LeaseExpired", False),
    ],
)
def test_a_participle_is_recognised(name: str, expected: bool) -> None:
    assert is_participle(name) is expected


def test_fixtures_properties_methods_and_nested_functions_are_held() -> None:
    tree = ast.parse(
        "class A:\n"
        "    @property\n"
        "    def applied(self): ...\n"
        "    def seen(self):\n"
        "        def told(): ...\n"
        "    def __reversed__(self): ...\n"
        "class Held: ...\n"
        "class Place(Protocol):\n"
        "    @property\n"
        "    def placed(self): ...\n"
        "@pytest.fixture\n"
        "async def made(): ...\n"
    )

    assert sorted(bare_participles(tree)) == ["Held", "applied", "made", "seen", "told"]


def test_banned_words_are_found_inside_identifiers() -> None:
    assert banned_words("self._told_at = WhomToAsk()  # Nobody knows, stolde") == ["told", "Whom", "Nobody"]


def test_no_function_or_class_is_a_bare_participle() -> None:
    found = [
        f"{file.relative_to(ROOT)}: {name}"
        for file in python_files(EVERYTHING)
        for name in bare_participles(ast.parse(file.read_text(encoding="utf-8")))
    ]

    assert found == []


def test_no_public_class_name_stands_twice() -> None:
    places: dict[str, list[str]] = defaultdict(list)
    for file in python_files():
        for node in ast.parse(file.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(str(file.relative_to(ROOT)))

    assert {name: files for name, files in places.items() if len(files) > 1} == {}


def test_components_are_no_persons() -> None:
    found = [
        f"{file.relative_to(ROOT)}:{line}: {word}"
        for file in python_files()
        for line, text in words_of_python(file.read_text(encoding="utf-8"))
        for word in [*banned_words(text), *translated_phrases(text)]
    ]
    found += [
        f"{file.relative_to(ROOT)}:{number}: {word}"
        for file in texts()
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1)
        for prose in [_CODE_SPAN.sub("", line)]
        for word in [*banned_words(prose), *translated_phrases(prose)]
    ]

    assert found == []


def test_tests_make_no_persons_of_components_either() -> None:
    tests = ROOT / "tests"
    found = [
        f"{file.relative_to(tests)}:{line}: {word}"
        for file in sorted(tests.rglob("*.py"))
        if file != Path(__file__)
        for line, text in words_of_python(file.read_text(encoding="utf-8"))
        for word in [*banned_words(text), *translated_phrases(text)]
    ]

    assert found == []


def test_exceptions_in_docstrings_exist() -> None:
    trees = {file: ast.parse(file.read_text(encoding="utf-8")) for file in python_files()}
    known = set(dir(builtins)) | {
        name
        for tree in trees.values()
        for node in ast.walk(tree)
        for name in (
            [node.name]
            if isinstance(node, ast.ClassDef)
            else [alias.asname or alias.name for alias in node.names]
            if isinstance(node, ast.Import | ast.ImportFrom)
            else []
        )
    }
    found = [
        f"{file.relative_to(ROOT)}: {name}"
        for file, tree in trees.items()
        for name in exceptions_in_docstrings(tree)
        if name not in known
    ]

    assert found == []


#: A document that is named with or without its folders; a pattern is none.
_DOCUMENT = re.compile(r"(?<![\w.*{}<>/-])(?:[\w-]+/)*[\w-]+\.md\b")


def test_documents_that_are_named_exist() -> None:
    folders = (ROOT / name for name in ("docs", "bench", "tests"))
    there = {f"/{path.relative_to(ROOT)}" for folder in folders for path in folder.rglob("*.md")}
    there |= {f"/{path.name}" for path in ROOT.glob("*.md")}
    pages = re.findall(r"\S+\.md$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE)
    there |= {f"/docs/{page}" for page in pages}  # some are generated when the site is built
    named = [
        (f"{file.relative_to(ROOT)}:{line}", name)
        for file in python_files()
        for line, text in words_of_python(file.read_text(encoding="utf-8"))
        for name in _DOCUMENT.findall(text)
    ]
    named += [
        (str(file.relative_to(ROOT)), name)
        for file in texts()
        if file.suffix == ".sql"
        for name in _DOCUMENT.findall(file.read_text(encoding="utf-8"))
    ]

    assert len(named) >= 10
    assert [(where, name) for where, name in named if not any(path.endswith(f"/{name}") for path in there)] == []
