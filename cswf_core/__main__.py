"""`python -m cswf_core` is `cswf`."""

from cswf_core.cli import main

main()
