"""Known vulnerabilities of the locked packages, as pip-audit finds them.

    python tools/audit.py PIP_AUDIT LOCK...

Ends with 1 where there is one, and with 0 where there is none. Where the service that knows them cannot be reached, or does not know
the packages (a mirror without that part), it says so and ends with 0 as well: nothing was found out, and the last line says that.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any


def audit(pip_audit: str, locks: list[str]) -> tuple[dict[str, Any], str]:
    """What pip-audit answers for all locks, and what it said where it gave none. One call a lock: it wants hashes in all or none."""
    words = [pip_audit, "--format", "json", "--no-deps", "--disable-pip", "--progress-spinner", "off"]
    packages: list[Any] = []
    said = ""
    for lock in locks:
        done = subprocess.run([*words, "-r", lock], capture_output=True, text=True, timeout=600, check=False)
        try:
            packages += json.loads(done.stdout)["dependencies"]
        except (ValueError, KeyError):
            said = (done.stderr.strip().splitlines() or [""])[-1]
    return {"dependencies": packages}, said


def verdict(answer: dict[str, Any], said: str) -> tuple[int, list[str]]:
    """The exit code, and what to tell."""
    packages = answer.get("dependencies", [])
    known = [package for package in packages if "vulns" in package]
    lines = [
        f"{package['name']} {package['version']}: {found['id']}, mended in {', '.join(found['fix_versions']) or 'no release'}"
        for package in known
        for found in package["vulns"]
    ]
    if not known:
        reason = next((package["skip_reason"] for package in packages if "skip_reason" in package), said) or "no answer"
        return 0, [f"not audited: the service that knows vulnerabilities cannot be reached from here ({reason[:200]})"]
    unknown = f"; {len(packages) - len(known)} are not known there" if len(known) < len(packages) else ""
    return int(bool(lines)), [*lines, f"{len(known)} packages audited, {len(lines)} vulnerabilities{unknown}"]


def main() -> None:
    """Audit, and tell."""
    code, lines = verdict(*audit(sys.argv[1], sys.argv[2:]))
    for line in lines:
        print(f"audit: {line}")
    raise SystemExit(code)


if __name__ == "__main__":
    main()
