"""How fast a served learner answers: `python -m benchmarks.serve MODEL`, MODEL written by `pipeline.export --mlflow`.

Starts MLflow's server on it and prints latency for one image and for many in a request, throughput and errors of
clients in parallel, and the server's memory. Elapsed seconds, client and server on the same machine.
"""

from __future__ import annotations

import argparse
import base64
import io
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import psutil
from PIL import Image

from par.files import read_json


def request(images: int, size: list[int], task: str) -> bytes:
    """The body of a request with so many images of noise, height and width ``size``, for a task or ``auto``."""
    generator, records = np.random.default_rng(0), []
    for _ in range(images):
        file = io.BytesIO()
        pixels = generator.integers(0, 256, (*size, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(file, format="PNG")
        records.append({"image": base64.b64encode(file.getvalue()).decode(), "task": task})
    return json.dumps({"dataframe_records": records}).encode()


def post(address: str, body: bytes) -> float:
    """Seconds of one request; raises where it is refused."""
    started = time.perf_counter()
    headers = {"Content-Type": "application/json"}
    with urllib.request.urlopen(urllib.request.Request(address, body, headers), timeout=120) as answer:
        answer.read()
    return time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.serve")
    parser.add_argument("model", type=Path)
    parser.add_argument("--requests", type=int, default=1000, help="of the clients in parallel, together")
    parser.add_argument("--clients", type=int, default=8)
    options = parser.parse_args()
    size = read_json(options.model / "data/learner/card.json")["tasks"][0]["image_size"]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    arguments = ["--env-manager", "local", "--model-uri", str(options.model), "--port", str(port)]
    program = [sys.executable, "-m", "mlflow", "models", "serve", *arguments]
    server = subprocess.Popen(program, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    try:
        address = f"http://127.0.0.1:{port}"
        while True:
            try:
                urllib.request.urlopen(f"{address}/ping", timeout=5)
                break
            except OSError:
                if server.poll() is not None:
                    raise SystemExit("the server has ended; start it by hand to see why") from None
                time.sleep(0.2)
        measure(f"{address}/invocations", size, options.requests, options.clients)
        processes = [psutil.Process(server.pid), *psutil.Process(server.pid).children(recursive=True)]
        print(f"resident memory of the server: {sum(one.memory_info().rss for one in processes) / 1e6:.0f} MB")
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        server.wait()


def measure(address: str, size: list[int], n_requests: int, n_clients: int) -> None:
    """Print latencies and throughput."""
    for images, task, repeats in ((1, "0", 200), (256, "0", 20), (1, "auto", 50), (256, "auto", 5)):
        body = request(images, size, task)
        post(address, body)
        seconds = np.array([post(address, body) for _ in range(repeats)])
        p50, p99 = 1000 * np.percentile(seconds, [50, 99])
        speed = f"p50 {p50:.1f} ms, p99 {p99:.1f} ms, {images / seconds.mean():.0f} images/s"
        print(f"{images} images a request, task {task}: {speed}")
    body, errors = request(1, size, "0"), 0

    def ask(_: int) -> bool:
        try:
            post(address, body)
            return True
        except OSError:
            return False

    started = time.perf_counter()
    with ThreadPoolExecutor(n_clients) as clients:
        errors = n_requests - sum(clients.map(ask, range(n_requests)))
    per_second = n_requests / (time.perf_counter() - started)
    print(f"{n_requests} requests by {n_clients} clients in parallel: {per_second:.0f} a second, {errors} errors")


if __name__ == "__main__":
    main()
