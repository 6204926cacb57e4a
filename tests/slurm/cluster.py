"""A SLURM of this machine alone: munged, a controller and one node of two CPUs on the loopback address.

Everything lies in a temporary folder and nothing is left of it. It needs Debian's slurm-wlm and munge, neither systemd
nor root, and runs a command with it, or the tests:

    python -m tests.slurm.cluster sbatch --wrap hostname
"""

from __future__ import annotations

import getpass
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil

CPUS = 2
PATIENCE = 60.0  # seconds until a daemon answers, or a job is gone
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "squeue", "scancel", "scontrol", "sinfo")
PATH = os.pathsep.join((os.environ["PATH"], "/usr/sbin", "/sbin"))  # daemons are not on everybody's path

# No cgroups, which a container may not make; memory and accounting are not watched.
CONFIGURATION = """
ClusterName=par
SlurmctldHost={host}(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
SlurmctldPort={controller_port}
SlurmdPort={node_port}
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
PlugStackConfig=/dev/null
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=batch_sched_delay=1,sched_interval=2,bf_interval=5
ReturnToService=2
KillWait=2
SlurmdParameters=config_overrides
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} RealMemory={megabytes} State=UNKNOWN
PartitionName=par Nodes={host} Default=YES MaxTime=INFINITE State=UP
"""


def missing() -> list[str]:
    """The programs of SLURM that this machine lacks."""
    return [name for name in PROGRAMS if shutil.which(name, path=PATH) is None]


class Slurm:
    """A running SLURM; ``environment`` lets its commands find it."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.environment = os.environ | {"SLURM_CONF": f"{folder}/slurm.conf", "PATH": PATH}
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}

    def start(self) -> None:
        """Start all three daemons and wait until the node takes jobs."""
        for name in ("state", "spool"):
            (self.folder / name).mkdir()
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(64))
        key.chmod(0o600)
        host = socket.gethostname().partition(".")[0]
        values = {
            "host": host,
            "user": getpass.getuser(),
            "folder": self.folder,
            "controller_port": free_port(),
            "node_port": free_port(),
            "cpus": CPUS,
            "megabytes": psutil.virtual_memory().total >> 20,
        }
        (self.folder / "slurm.conf").write_text(CONFIGURATION.format_map(values))
        files = {"socket": "munge.socket", "key-file": "munge.key", "log-file": "munged.log", "pid-file": "munged.pid"}
        files["seed-file"] = "munged.seed"
        self._start("munged", "--foreground", "--force", *(f"--{k}={self.folder / v}" for k, v in files.items()))
        self._wait("munged", lambda: (self.folder / "munge.socket").exists())
        self.start_controller()
        self._start("slurmd", "-D")
        self._wait("slurmd", lambda: "idle" in self.ask("sinfo", "--noheader", "--format=%t"))

    def start_controller(self) -> None:
        """Start slurmctld, for the first time or again."""
        self._start("slurmctld", "-D")
        self._wait("slurmctld", lambda: "UP" in self.ask("scontrol", "ping", check=False))

    def stop_controller(self) -> None:
        """End slurmctld as a service manager does; jobs go on."""
        self._end("slurmctld")

    def ask(self, *command: str, check: bool = True) -> str:
        """What a command of SLURM prints; one that fails is an error."""
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=2 * PATIENCE)
        assert done.returncode == 0 or not check, f"{' '.join(command)}: {done.stderr}{done.stdout}{self.logs()}"
        return done.stdout

    def stop(self) -> None:
        """Cancel all jobs, end the daemons and what a job has left."""
        if "slurmctld" in self._daemons:
            self.ask("scancel", f"--user={getpass.getuser()}", check=False)
            end = time.monotonic() + PATIENCE
            while self.ask("squeue", "--noheader", check=False).strip() and time.monotonic() < end:
                time.sleep(0.2)
        for name in reversed(list(self._daemons)):
            self._end(name)
        for process in self._left():
            process.kill()

    def logs(self) -> str:
        """The last lines of the daemons' logs."""
        texts = {path.name: path.read_text(errors="replace")[-2000:] for path in self.folder.glob("*.log")}
        return "".join(f"\n--- {name}\n{text}" for name, text in texts.items())

    def _start(self, name: str, *options: str) -> None:
        program = shutil.which(name, path=PATH)
        assert program is not None
        with open(self.folder / f"{name}.out.log", "ab") as log:
            self._daemons[name] = subprocess.Popen(
                [program, *options],
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C is for us, who then end it
            )

    def _wait(self, name: str, is_ready: Callable[[], bool]) -> None:
        end = time.monotonic() + PATIENCE
        while not is_ready():
            alive = self._daemons[name].poll() is None
            assert alive and time.monotonic() < end, f"{name} does not answer{self.logs()}"
            time.sleep(0.1)

    def _end(self, name: str) -> None:
        daemon = self._daemons.pop(name)
        daemon.terminate()
        try:
            daemon.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            daemon.kill()
            daemon.wait()

    def _left(self) -> Iterator[psutil.Process]:
        """Processes that a job or a killed daemon has left: their environment names our folder."""
        for process in psutil.process_iter():
            try:
                is_ours = process.environ().get("SLURM_CONF") == self.environment["SLURM_CONF"]
            except psutil.Error:  # it has ended, or is another user's
                continue
            if is_ours and process.pid != os.getpid():
                yield process


def free_port() -> int:
    """A TCP port of the loopback address that nobody listens on."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@contextmanager
def running() -> Iterator[Slurm]:
    """A SLURM while the block runs."""
    with ExitStack() as stack:  # a short path, as that of a socket must be
        slurm = Slurm(Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="slurm-", dir="/tmp"))))
        stack.callback(slurm.stop)
        slurm.start()
        yield slurm


def main() -> int:
    """Run the command of the command line with a SLURM of its own."""
    if missing():
        print(f"This machine lacks {', '.join(missing())}: apt-get install slurm-wlm munge", file=sys.stderr)
        return 1
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    with running() as slurm:
        return subprocess.run(sys.argv[1:], env=slurm.environment).returncode


if __name__ == "__main__":
    sys.exit(main())
