"""Known vulnerabilities of the installed packages, as the package index reports them; `make check` runs it.

An index without advisories, or an unreachable one, is no failure: the output says so, with the number of packages that
were looked up.
"""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec

TIMEOUT_S = 180.0


def main() -> int:
    """Print one line for each vulnerability, or one line in total; return 1 if any was found."""
    if find_spec("pip_audit") is None:
        print("vulnerabilities were not looked up: pip-audit is not installed (make dev)")  # noqa: T201
        return 0
    command = [sys.executable, "-m", "pip_audit", "--skip-editable", "--progress-spinner", "off", "--format", "json"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
        found = json.loads(done.stdout)["dependencies"]
    except (subprocess.TimeoutExpired, ValueError):
        print("vulnerabilities were not looked up: the index does not answer")  # noqa: T201
        return 0
    looked_up = [each for each in found if "skip_reason" not in each]
    lines = [
        f"{each['name']} {each['version']}: {known['id']}, fixed in {', '.join(known['fix_versions']) or 'no version'}"
        for each in looked_up
        for known in each["vulns"]
    ]
    print("\n".join(lines) or f"no known vulnerability in {len(looked_up)} of {len(found)} packages")  # noqa: T201
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
