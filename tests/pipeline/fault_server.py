"""A tracking server in a thread that keeps runs in memory and misbehaves as it is told."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

EXPERIMENT = {
    "experiment_id": "1",
    "name": "par",
    "artifact_location": "mlflow-artifacts:/1",
    "lifecycle_stage": "active",
}


class FaultServer(ThreadingHTTPServer):
    """What the handlers share. ``fault`` is the misbehaviour, ``seconds`` how long a slow answer takes."""

    daemon_threads = True

    def __init__(self, fault: str, seconds: float) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.fault, self.seconds = fault, seconds
        self.runs: dict[str, dict[str, Any]] = {}
        self.is_asked = threading.Event()
        self.over = threading.Event()

    def handle_error(self, *arguments: object) -> None:
        """The other side is killed in the middle of an answer: that is what is tested."""

    @property
    def place(self) -> str:
        return f"127.0.0.1:{self.server_port}"

    def ended(self) -> list[str]:
        """Names of the runs that are there and have ended."""
        return [run["info"]["run_name"] for run in self.runs.values() if run["info"]["status"] != "RUNNING"]


class Handler(BaseHTTPRequestHandler):
    server: FaultServer

    def log_message(self, *arguments: object) -> None:
        pass

    def answer(self) -> None:
        self.server.is_asked.set()
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        fault, path = self.server.fault, urlsplit(self.path).path
        if fault == "mute" or (fault == "hanging uploads" and "mlflow-artifacts" in path):
            self.server.over.wait()
            return
        if fault == "slow":
            time.sleep(self.server.seconds)
        if fault == "trickling":
            self.reply(200, b"{" + b" " * 10_000 + b"}", pause=0.05)
        elif fault == "html":
            echo = f"<html>{self.headers.get('Authorization')} {self.path}</html>"  # as debugging pages do
            self.reply(200, echo.encode())
        elif fault.isdigit():
            self.reply(int(fault), b'{"error_code": "NO", "message": "because"}')
        else:
            given = json.loads(body) if body and not path.startswith("/api/2.0/mlflow-artifacts") else {}
            self.reply(200, json.dumps(self.store(path.rpartition("mlflow/")[2], given)).encode())

    do_GET = do_POST = do_PUT = do_PATCH = answer

    def reply(self, status: int, content: bytes, pause: float = 0.0) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Retry-After", "3600")
        self.end_headers()
        for start in range(0, len(content), 100 if pause else len(content)):
            if self.server.over.wait(pause):
                return
            self.wfile.write(content[start : start + (100 if pause else len(content))])

    def store(self, call: str, given: dict[str, Any]) -> dict[str, Any]:
        """As much of MLflow's tracking store as a publication needs."""
        runs = self.server.runs
        if call == "experiments/get-by-name":
            return {"experiment": EXPERIMENT}
        if call == "runs/create":
            key = f"{len(runs):032x}"
            info = {"run_id": key, "run_name": given["run_name"], "experiment_id": "1", "status": "RUNNING"}
            info |= {"start_time": given["start_time"], "artifact_uri": f"mlflow-artifacts:/1/{key}/artifacts"}
            runs[key] = {"info": info, "data": {"tags": given["tags"]}}
            return {"run": runs[key]}
        if call == "runs/get":
            return {"run": runs[urlsplit(self.path).query.rpartition("run_id=")[2][:32]]}
        if call == "runs/search":
            wanted = given["filter"].split("'")[1::2]
            return {"runs": [run for run in runs.values() if self.matches(run, wanted)]}
        if call == "runs/update":
            runs[given["run_id"]]["info"]["status"] = given["status"]
            return {"run_info": runs[given["run_id"]]["info"]}
        if call == "runs/delete":
            del runs[given["run_id"]]
        return {}

    @staticmethod
    def matches(run: dict[str, Any], wanted: list[str]) -> bool:
        values = {tag["value"] for tag in run["data"]["tags"]}
        return all(value in values for value in wanted)


@contextmanager
def fault_server(fault: str, seconds: float = 0.5) -> Iterator[FaultServer]:
    """Serve on a free port of this machine while the block runs."""
    server = FaultServer(fault, seconds)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield server
    finally:
        server.over.set()
        server.shutdown()
        thread.join()
        server.server_close()
