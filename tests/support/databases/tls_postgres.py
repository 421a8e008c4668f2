"""A PostgreSQL with TLS: Debian's, because the embedded PostgreSQL was built without OpenSSL."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg2

from tests.support.ports import free_port
from tests.support.processes.lifetimes import new_folder
from tests.support.programs import reject_missing

START_S = 60.0
#: initdb and postgres refuse to run as root.
USER = "postgres"
HBA = "hostssl all all 127.0.0.1/32 trust\n"


def require_binaries() -> Path:
    """Return the folder of the server's binaries."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"))
    if not found:
        reject_missing("PostgreSQL with TLS")
    return found[-1].parent


@contextmanager
def running_tls_postgres(certificate: Path, key: Path) -> Iterator[int]:
    """Run a server that accepts only TLS connections; yield its port. The user is postgres, without a password."""
    binaries, home = require_binaries(), new_folder("pgtls-")
    user = USER if os.geteuid() == 0 else None
    try:
        for name, source in (("server.crt", certificate), ("server.key", key)):
            (home / name).write_bytes(source.read_bytes())
            (home / name).chmod(0o600)
        _give_to_server_user(home)
        data = home / "data"
        initdb = [str(binaries / "initdb"), "-D", str(data), "-U", "postgres", "-A", "trust", "--no-sync"]
        subprocess.run(initdb, check=True, capture_output=True, user=user, cwd=home)
        (data / "pg_hba.conf").write_text(HBA)
        port = free_port()
        options = {
            "listen_addresses": "127.0.0.1",
            "port": port,
            "unix_socket_directories": "",
            "ssl": "on",
            "fsync": "off",
            "ssl_cert_file": home / "server.crt",
            "ssl_key_file": home / "server.key",
        }
        words = [word for name, value in options.items() for word in ("-c", f"{name}={value}")]
        with (home / "server.log").open("wb") as log:
            server = subprocess.Popen(
                [str(binaries / "postgres"), "-D", str(data), *words], stdout=log, stderr=log, user=user, cwd=home
            )
        try:
            _wait_for(port, server, home / "server.log")
            yield port
        finally:
            server.terminate()
            server.wait(START_S)
    finally:
        shutil.rmtree(home, ignore_errors=True)


def _give_to_server_user(home: Path) -> None:
    """Make the server's files accessible to its user, if this process runs as root."""
    if os.geteuid() != 0:
        return
    owner = pwd.getpwnam(USER)
    for path in (home, *home.iterdir()):
        os.chown(path, owner.pw_uid, owner.pw_gid)
    for parent in home.parents:  # the temporary folders, which are closed to other users
        if parent.stat().st_uid == 0 and parent != Path("/") and not parent.stat().st_mode & 0o001:
            parent.chmod(parent.stat().st_mode | 0o011)


def _wait_for(port: int, server: subprocess.Popen[bytes], log: Path) -> None:
    """Wait until the server accepts sessions: it listens before that."""
    end = time.monotonic() + START_S
    while True:
        try:
            psycopg2.connect(
                host="127.0.0.1", port=port, user="postgres", dbname="postgres", sslmode="require", connect_timeout=10
            ).close()
        except psycopg2.OperationalError:
            assert server.poll() is None, log.read_text()
            assert time.monotonic() < end, log.read_text()
            time.sleep(0.05)
        else:
            return
