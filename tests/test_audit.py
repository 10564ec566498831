"""`make audit` tells the three outcomes apart: found, nothing found, not asked."""

import json
import sys
from pathlib import Path

import pytest

import audit as tool

FOUND = {
    "dependencies": [
        {"name": "a", "version": "1", "vulns": [{"id": "V-1", "fix_versions": ["2"]}]},
        {"name": "b", "version": "1", "vulns": []},
    ]
}
CLEAN = {"dependencies": [{"name": "b", "version": "1", "vulns": []}, {"name": "c", "skip_reason": "not found"}]}
SKIPPED = {"dependencies": [{"name": "b", "skip_reason": "not found"}]}


@pytest.mark.parametrize(
    ("answer", "code", "words"),
    [
        (FOUND, 1, "a 1: V-1, mended in 2"),
        (CLEAN, 0, "1 packages audited, 0 vulnerabilities; 1 are not known"),
        (SKIPPED, 0, "not audited"),
        ({}, 0, "not audited"),
    ],
)
def test_a_vulnerability_alone_ends_with_1_and_the_last_line_says_what_was_found_out(answer, code, words):
    seen, lines = tool.verdict(answer, "")
    assert seen == code and any(words in line for line in lines)


def test_what_pip_audit_prints_is_read(tmp_path: Path):
    fake = tmp_path / "pip-audit"
    fake.write_text(
        f"#!{sys.executable}\nimport sys\nprint({json.dumps(json.dumps(FOUND))})\nprint('said', file=sys.stderr)\nsys.exit(1)\n"
    )
    fake.chmod(0o755)
    assert tool.audit(str(fake), ["lock.txt"]) == (FOUND, "")
    # a lock with hashes and one without cannot be asked for in one call
    fake.write_text(f"#!{sys.executable}\nimport sys\nassert sys.argv.count('-r') == 1\nprint({json.dumps(json.dumps(FOUND))})\n")
    assert tool.audit(str(fake), ["lock.txt", "torch.txt"]) == ({"dependencies": FOUND["dependencies"] * 2}, "")
    fake.write_text(f"#!{sys.executable}\nraise SystemExit('no network')\n")
    assert tool.audit(str(fake), ["lock.txt"]) == ({"dependencies": []}, "no network")
