"""What the tests of several parts share: a cache of their own."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("SMOPE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"
