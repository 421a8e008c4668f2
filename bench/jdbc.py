"""The peer of the load bench: Spark writes the same rows, from a Parquet file, through PostgreSQL's JDBC driver.

The embedded server listens on a socket file only and the driver speaks TCP, so a relay connects them, for a few percent
of a core. The time is that of the second write, when the JVM is warm; it excludes Spark's start.
"""

from __future__ import annotations

import io
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pyarrow.csv
import pyarrow.parquet

from bench.loading import WORKERS, LoadSite


def load_by_jdbc(home: LoadSite, text: bytes, jar: str) -> float:
    """Load the rows by Spark's JDBC writer; return its seconds, without the start of Spark."""
    name = home.new_target()
    home.run_sql(name, home.shape.create.replace(", PRIMARY KEY (id)", ""))
    with tempfile.TemporaryDirectory() as folder, run_relay(home.postgres.socket) as port:
        file = Path(folder) / "rows.parquet"
        write_parquet(text, [column for column, _, _ in home.shape.columns], file)
        url = f"jdbc:postgresql://127.0.0.1:{port}/{name}?reWriteBatchedInserts=true&stringtype=unspecified"
        done = subprocess.run(
            [sys.executable, "-m", "bench.jdbc", url, home.shape.name, str(file), jar], capture_output=True, text=True
        )
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    home.drop(name)
    return float(done.stdout)


def write_parquet(text: bytes, names: list[str], file: Path) -> None:
    """Write COPY text as a Parquet file, with a row group for each writer."""
    table = pyarrow.csv.read_csv(
        io.BytesIO(text),
        read_options=pyarrow.csv.ReadOptions(column_names=names),
        parse_options=pyarrow.csv.ParseOptions(delimiter="\t"),
    )
    pyarrow.parquet.write_table(table, file, row_group_size=-(-len(table) // WORKERS))


@contextmanager
def run_relay(path: Path) -> Iterator[int]:
    """Run a relay from a TCP port to a socket file within the block; yield the port."""
    listener = socket.create_server(("127.0.0.1", 0))

    def accept() -> None:
        with suppress(OSError):
            while True:
                near, _ = listener.accept()
                far = socket.socket(socket.AF_UNIX)
                far.connect(str(path))
                for one, other in ((near, far), (far, near)):
                    threading.Thread(target=carry, args=(one, other), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    with closing(listener):
        yield listener.getsockname()[1]


def carry(one: socket.socket, other: socket.socket) -> None:
    """Forward bytes from one socket to the other until the first one ends."""
    with suppress(OSError):
        while data := one.recv(1 << 18):
            other.sendall(data)
        other.shutdown(socket.SHUT_WR)


def main() -> None:
    from venus.config import Settings
    from venus.spark.session import open_session

    url, table, file, jar = sys.argv[1:]
    settings = Settings.model_validate({"spark": {"master": f"local[{WORKERS}]", "conf": {"spark.jars": jar}}})
    seconds = 0.0
    with open_session(settings, app="jdbc") as spark:
        rows = spark.read.parquet(file).repartition(WORKERS).cache()
        rows.count()
        for _ in range(2):
            began = time.perf_counter()
            writer = rows.write.mode("overwrite").option("truncate", "true").option("batchsize", "10000")
            writer.jdbc(url, table, properties={"user": "postgres", "driver": "org.postgresql.Driver"})
            seconds = time.perf_counter() - began
    print(seconds)


if __name__ == "__main__":
    main()
