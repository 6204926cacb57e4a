"""A worker process: ``python -m par.steps.worker <process id of its parent> <file descriptor of its connection>``.

Importing torch takes seconds in which the parent may be killed, so that comes after the tie to the parent.
"""

from __future__ import annotations

import sys
from multiprocessing.connection import Connection

from par.operating_system import die_with_parent


def main() -> None:
    """Serve the parent until it hangs up."""
    parent, descriptor = map(int, sys.argv[1:])
    die_with_parent(parent)
    from par.steps.workers import serve

    serve(Connection(descriptor))


if __name__ == "__main__":
    main()
