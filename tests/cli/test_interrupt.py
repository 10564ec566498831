"""Ctrl-C: ask, then insist."""

from __future__ import annotations

import signal

import pytest

from smope.cli.interrupt import Interrupt


def test_the_first_ctrl_c_asks_and_the_second_quits() -> None:
    told: list[bool] = []
    with Interrupt(lambda: told.append(True)) as stop:
        assert not stop()
        signal.raise_signal(signal.SIGINT)
        assert stop() and told == [True]
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_before_the_run_listens_ctrl_c_quits_as_ever() -> None:
    with Interrupt(lambda: None), pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


def test_the_handler_before_comes_back() -> None:
    before = signal.getsignal(signal.SIGINT)
    with Interrupt(lambda: None):
        assert signal.getsignal(signal.SIGINT) != before
    assert signal.getsignal(signal.SIGINT) == before


def test_where_ctrl_c_is_ignored_it_stays_ignored() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with Interrupt(lambda: None) as stop:
            stop()
            signal.raise_signal(signal.SIGINT)
            assert not stop()
    finally:
        signal.signal(signal.SIGINT, before)
