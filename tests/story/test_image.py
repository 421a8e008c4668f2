"""docker/Dockerfile: every step runs in a Debian root without a container engine, then the image's own command.

In place of `python:3.11-slim-bookworm` the test uses the same Debian with its own Python 3.11, made by debootstrap. It
needs root, debootstrap and package mirrors, so it is slow and is skipped where one is missing.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import urlopen

import pytest

from tests.support.dockerfile import Stage, build
from tests.support.ports import free_ports
from venus import __version__

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(3600)]

ROOT = Path(__file__).parents[2]
#: Folder in which a Debian root is kept between runs, because debootstrap takes minutes.
KEPT = os.environ.get("VENUS_TEST_DEBIAN_ROOT", "")
PIP = {name: value for name, value in os.environ.items() if name.startswith("PIP_") and "FIND_LINKS" not in name}
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
#: A target that is away: all other parts still run.
ENDS = {
    "VENUS_SOURCE__URL": "sqlite:////var/lib/venus/shop.db",
    "VENUS_TARGETS__MAIN__URL": "postgresql://venus@127.0.0.1:1/nowhere",
}
ENVIRON = {"PATH": PATH, "HOME": "/tmp", "PIP_BREAK_SYSTEM_PACKAGES": "1", **PIP}


def mirror() -> str:
    """Return the mirror from which this machine gets Debian's packages."""
    said = subprocess.run(
        ["apt-get", "indextargets", "--format", "$(REPO_URI)"], capture_output=True, text=True, check=True
    )
    return next(line for line in said.stdout.splitlines() if line.rstrip("/").endswith("/debian"))


@pytest.fixture(scope="module")
def debian(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a Debian 12 with Python 3.11 and pip, or use the one that was kept."""
    if KEPT and (Path(KEPT) / "usr/bin/python3").exists():
        return Path(KEPT)
    debootstrap = shutil.which("debootstrap", path=PATH)
    if debootstrap is None:
        pytest.skip("no debootstrap on this machine")
    made = Path(KEPT) if KEPT else tmp_path_factory.mktemp("debian") / "root"
    packages = "--include=python3,python3-pip,ca-certificates"
    subprocess.run([debootstrap, "--variant=minbase", packages, "bookworm", str(made), mirror()], check=True)
    return made


@pytest.fixture
def image(debian: Path, tmp_path: Path) -> Iterator[Stage]:
    if os.geteuid() or not shutil.which("chroot"):
        pytest.skip("only root may carry out the steps")
    mounted: list[Path] = []

    def mount_base_image(name: str) -> Path:
        assert name == "python:3.11-slim-bookworm"
        root = tmp_path / f"root{len(mounted)}"
        subprocess.run(["cp", "-ax", "--reflink=auto", str(debian), str(root)], check=True)
        for program in ("python", "pip"):  # as in the official image
            (root / "usr/local/bin" / program).symlink_to(f"/usr/bin/{program}3")
        shutil.copy("/etc/resolv.conf", root / "etc/resolv.conf")
        authorities = "etc/ssl/certs/ca-certificates.crt"
        shutil.copy(f"/{authorities}", root / authorities)
        for file in ("/etc/pip.conf", "/etc/hosts"):
            if Path(file).exists():
                shutil.copy(file, root / file.lstrip("/"))
        subprocess.run(["mount", "--bind", "/dev", str(root / "dev")], check=True)
        subprocess.run(["mount", "-t", "proc", "proc", str(root / "proc")], check=True)
        mounted.append(root)
        return root

    try:
        yield build(ROOT / "docker" / "Dockerfile", ROOT, mount_base_image, ENVIRON, EXTRAS="[oracle]")
    finally:
        for root in mounted:
            subprocess.run(["umount", str(root / "dev"), str(root / "proc")], check=True)


@contextmanager
def start(image: Stage, http: int, grpc: int) -> Iterator[subprocess.Popen[str]]:
    """Run the image's command as its user."""
    listen = {"VENUS_BROKER__LISTEN": f"127.0.0.1:{grpc}", "VENUS_BROKER__HTTP": f"127.0.0.1:{http}"}
    command = ["chroot", f"--userspec={image.user}:{image.user}", str(image.root), "/usr/bin/env", "-C", image.folder]
    process = subprocess.Popen(
        [*command, *image.commands],
        env=ENVIRON | ENDS | listen,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


MAKE_A_SHOP = "import sqlite3; sqlite3.connect('shop.db').execute('CREATE TABLE t (id INTEGER PRIMARY KEY)')"


def test_the_image_is_built_and_runs_every_command_as_its_own_user(image: Stage) -> None:
    assert f"venus {__version__}" in " ".join(image.run(["venus", "version"], ENVIRON).split())
    assert image.run(["python", "-c", "import oracledb; print('there')"], ENVIRON) == "there\n"
    assert not (image.root / "wheels").exists()
    assert image.run(["id", "-un"], ENVIRON) == "venus\n"
    image.run(["python", "-c", MAKE_A_SHOP], ENVIRON)
    image.run(["venus", "install-triggers"], ENVIRON | ENDS)
    http, grpc = free_ports(2)
    with start(image, http, grpc) as broker:
        deadline = time.monotonic() + 60
        while True:
            try:
                with urlopen(f"http://127.0.0.1:{http}/health", timeout=5) as answer:
                    assert answer.read().startswith(b"ok")
                break
            except OSError:
                assert broker.poll() is None, broker.communicate()[0]
                assert time.monotonic() < deadline
                time.sleep(0.2)
        store = image.root / "var/lib/venus/data"
        assert (store.stat().st_uid, store.stat().st_mode & 0o777) == (7400, 0o700)
        broker.send_signal(getattr(signal, image.said["STOPSIGNAL"]))
        assert broker.wait(30) == 0
