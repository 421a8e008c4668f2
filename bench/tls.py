"""What mutual TLS costs: the same rounds through a plain broker and through one with certificates, alternately.

    python -m bench.tls [--rows 100 1000] [--rounds 7] [--warm-up 2]

Producer, broker and consumer as in bench.transmission. The machine's speed changes within minutes, so rounds of the two
brokers alternate, and only their ratio counts.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path

from bench.rates import TOTAL
from bench.rounds import Figures, Round, SenderAndReceiver
from bench.venus_transmission import VenusSystem
from tests.support.brokers.certificates import EVERYTHING, Authority
from venus.config import SecuritySettings


class SecuredVenus(VenusSystem):
    """A broker with a certificate, and clients that show theirs."""

    def __init__(self, authority: Authority) -> None:
        super().__init__()
        self.name = "VENUS with mutual TLS"
        self._authority = authority

    def security(self) -> SecuritySettings:
        """Return the broker's certificates."""
        return self._authority.security()

    def reach(self, address: str) -> str:
        """Return the address with the clients' certificate."""
        return self._authority.address(address, "all", *EVERYTHING)


def ratio(plain: list[float], secured: list[float]) -> str:
    """Return the median of the ratios secured/plain, pair by pair, and their range, as text."""
    each = [mine / other for mine, other in zip(secured, plain, strict=True)]
    return f"{statistics.median(each):.2f} ({min(each):.2f} to {max(each):.2f})"


def run(systems: tuple[VenusSystem, VenusSystem], rows: int, *, rounds: int, warm_up: int) -> None:
    """Measure batches of one size with and without TLS, and print the line."""
    batches = max(10, TOTAL.get(rows, 200_000) // rows)
    pairs = [SenderAndReceiver(system) for system in systems]
    found: list[list[Figures]] = [[], []]
    try:
        for n in range(warm_up + rounds):
            for pair, figures in zip(pairs, found, strict=True):
                figures.append(pair.run(Round(number=n, rows=rows, batches=batches)))
    finally:
        for pair in pairs:
            pair.close()
    plain, secured = (figures[warm_up:] for figures in found)
    total = rows * batches
    rates = [total / statistics.median(f.received_s for f in figures) for figures in (plain, secured)]
    print(
        f"{rows:5} rows a batch: {rates[0]:11,.0f} rows/s plain {rates[1]:11,.0f} rows/s with TLS;"
        f" time {ratio([f.received_s for f in plain], [f.received_s for f in secured])} times,"
        f" broker's CPU {ratio([f.server_cpu_s for f in plain], [f.server_cpu_s for f in secured])} times",
        flush=True,
    )


def main() -> int:
    """Measure the requested sizes, and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", nargs="*", type=int, default=[100, 1000])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--warm-up", type=int, default=2)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="venus-bench-") as folder:
        systems = (VenusSystem(), SecuredVenus(Authority(Path(folder))))
        try:
            for system in systems:
                system.start()
            for rows in options.rows:
                run(systems, rows, rounds=options.rounds, warm_up=options.warm_up)
        finally:
            for system in systems:
                system.stop()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
