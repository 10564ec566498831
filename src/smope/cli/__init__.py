"""The command line: argv in, tables and exit codes out. No logic lives here; every command is a few calls of the library."""

from smope.cli.app import main

__all__ = ["main"]
