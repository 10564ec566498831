"""`python -m smope` is `smope`."""

from smope.cli import main

main()
