"""Executes the steps of a Dockerfile in a folder with a root file system: without an engine, layers or a cache.

It knows the instructions of docker/Dockerfile and raises an error for any other, so that no part of the file is
skipped. The base image is the content that the caller has put into the folder.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

#: Instructions that change the image's settings, not its files.
_SAID_ONLY = ("EXPOSE", "STOPSIGNAL", "VOLUME", "ENTRYPOINT", "CMD")
CARRIED_OUT = frozenset(("ARG", "FROM", "RUN", "WORKDIR", "USER", "COPY", *_SAID_ONLY))
STEP_TIMEOUT_S = 900.0


@dataclass(slots=True)
class Stage:
    """A root file system, and the settings of the instructions so far."""

    root: Path
    arguments: dict[str, str]
    user: str = "0"
    folder: str = "/"
    said: dict[str, str] = field(default_factory=dict)

    def run(self, command: list[str], environ: dict[str, str], timeout_s: float = STEP_TIMEOUT_S) -> str:
        """Run a command as the stage's user in its folder; return its output. Raises AssertionError."""
        inside = ["chroot", f"--userspec={self.user}:{self.user}", str(self.root), "/usr/bin/env", "-C", self.folder]
        done = subprocess.run(
            [*inside, *command],
            env=environ | self.arguments,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
        assert done.returncode == 0, f"{' '.join(command)} => {done.returncode}\n{done.stdout}{done.stderr}"
        return done.stdout

    @property
    def commands(self) -> list[str]:
        """Return the commands that the image runs."""
        return [*json.loads(self.said["ENTRYPOINT"]), *json.loads(self.said["CMD"])]


def instructions(text: str) -> Iterator[tuple[str, str]]:
    """Yield each instruction and its arguments."""
    lines = re.sub(r"^\s*#.*\n", "", text, flags=re.MULTILINE).replace("\\\n", " ").splitlines()
    for line in filter(str.strip, lines):
        word, _, rest = line.strip().partition(" ")
        yield word.upper(), rest.strip()


def build(
    dockerfile: Path, context: Path, base: Callable[[str], Path], environ: dict[str, str], **arguments: str
) -> Stage:
    """Execute every step; `base` returns a root file system for an image's name. Return the last stage."""
    stages: dict[str, Stage] = {}
    known: dict[str, str] = {}
    stage: Stage | None = None
    for word, rest in instructions(dockerfile.read_text()):
        if word == "ARG":
            name, _, value = rest.partition("=")
            known.setdefault(name, arguments.get(name, value))
            if stage is not None:
                stage.arguments[name] = known[name]
        elif word == "FROM":
            image, _, name = rest.partition(" AS ")
            stage = stages[name or "last"] = Stage(base(image), {})
        else:
            assert stage is not None
            _step(stage, word, rest, stages, context, environ)
    assert stage is not None
    return stage


def _step(stage: Stage, word: str, rest: str, stages: dict[str, Stage], context: Path, environ: dict[str, str]) -> None:
    if word == "RUN":
        stage.run(["/bin/sh", "-c", rest], environ)
    elif word == "WORKDIR":
        stage.folder = rest
        (stage.root / rest.lstrip("/")).mkdir(parents=True, exist_ok=True)
    elif word == "USER":
        stage.user = rest
    elif word == "COPY":
        _copy(stage, rest.split(), stages, context)
    elif word in _SAID_ONLY:
        stage.said[word] = rest
    else:
        raise AssertionError(f"{word}: not carried out here")


def _copy(stage: Stage, words: list[str], stages: dict[str, Stage], context: Path) -> None:
    into = stage.root / os.path.join(stage.folder, words[-1]).lstrip("/")
    if words[0].startswith("--from="):
        source = stages[words[0].removeprefix("--from=")].root / words[1].lstrip("/")
        ignored = None
    else:
        source, ignored = context / words[0], _find_ignored(context)
    shutil.copytree(source, into, dirs_exist_ok=True, ignore=ignored, symlinks=True)


def _find_ignored(context: Path) -> Callable[[str, list[str]], set[str]]:
    """Return an ignore function for docker/Dockerfile.dockerignore: names at the top, and `**/name` anywhere."""
    patterns = (context / "docker" / "Dockerfile.dockerignore").read_text().split()
    anywhere = {pattern.removeprefix("**/") for pattern in patterns if pattern.startswith("**/")}
    top = shutil.ignore_patterns(*(pattern for pattern in patterns if not pattern.startswith("**/")))

    def left_out(folder: str, names: list[str]) -> set[str]:
        return (top(folder, names) if Path(folder) == context else set()) | (anywhere & set(names))

    return left_out
