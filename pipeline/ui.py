"""MLflow's pages on this machine: ``make ui [PORT=5001]``."""

from __future__ import annotations

import os
import socket
import sys

from filelock import FileLock

from pipeline import database
from pipeline.address import DATABASE, ui_address, ui_port
from pipeline.journal import home


def main() -> None:
    """Check the port, see to the database, then become ``mlflow ui``; exits with 1 and one sentence on a mistake."""
    try:
        port = ui_port()
        _check_port(port)
        home().mkdir(exist_ok=True)
        with FileLock(home() / "publish.lock"):
            print(database.prepare() or _how_to_open(port))
    except (ValueError, OSError, database.DatabaseError) as error:
        sys.exit(f"ui: {error}")
    sys.stdout.flush()
    options = ["--workers", "1", "--host", "127.0.0.1", "--port", str(port), "--backend-store-uri", DATABASE]
    os.execv(sys.executable, [sys.executable, "-m", "mlflow", "ui", *options])


def _how_to_open(port: int) -> str:
    """The address of the runs, and for whoever sits at another machine the tunnel that makes it work there too."""
    tunnel = f"ssh -L {port}:127.0.0.1:{port} {os.environ.get('USER', 'user')}@{socket.gethostname()}"
    return (
        f"Open {ui_address()}/#/experiments/1/runs?workflowType=machine_learning\n"
        f"If your browser is on another machine, first run there: {tunnel}"
    )


def _check_port(port: int) -> None:
    """Raise an OSError that names the remedy if the port cannot be had: MLflow would take a minute and exit with 0."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            other = port + 1 if port < 65535 else port - 1
            raise OSError(f"port {port}: {error.strerror}; choose another one, as in: make ui PORT={other}") from None


if __name__ == "__main__":
    main()
