"""One run on a machine with a GPU, of some ten minutes: `python -m benchmarks.device --data DIR --out DIR`.

Does everything work there, are its numbers a CPU's, are they the same twice, and how fast is it? Every part is guarded:
one that fails leaves its error and the next one runs. Results are written after every part, to `device.json` and, as
tables, `device.md` in `--out`. Parts can be chosen: card operations methods extractor steps capture networks profile
processes task search.

`--data` is a built stream with tasks of CIFAR100-10; `make device` packs one, and says what else to carry to a machine
without network. `--quick` runs all parts on tiny networks and a demo stream, on any device.
"""

from __future__ import annotations

import argparse
import copy
import io
import platform
import statistics
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import redirect_stderr
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from par.cells.expert import Expert
from par.cells.genotype import DARTS_V1, GENOTYPE_OPERATIONS, KINDS
from par.cells.operations import make_operation
from par.cells.supernet import Supernet
from par.config import Config, ExpertSettings, ExtractorSettings, NetworkSettings, Recipe, SearchSettings
from par.device import hardware
from par.files import write_json
from par.networks.resnet import LightResNet
from par.relatedness.extractor import load_extractor
from par.schema import ConfigError
from par.settings import resolve
from par.steps.chain_job import ChainJob, ChainTask, assemble
from par.steps.search_job import SearchJob
from par.steps.slots import Workers
from par.steps.store import Store
from par.steps.workers import run_jobs
from par.streams import build_stream, load_stream
from par.training import trainer
from par.training.images import Images
from par.training.losses import cross_entropy, distillation
from par.training.precision import Precision, autocast, policy, resolve_precision
from par.training.step import Recorder, capturing, cuda_graphs
from tests.device.cases import CASES, Calls, through

Row = dict[str, Any]
CPU = torch.device("cpu")
CLASSES = 10
PIXELS = 32


@dataclass(frozen=True)
class Plan:
    """What to measure on, and how large."""

    device: torch.device
    data: Path | None
    out: Path
    quick: bool

    @property
    def channels(self) -> int:
        """Of an expert and of the light ResNet18."""
        return 4 if self.quick else 64

    @property
    def repeats(self) -> int:
        """Steps that a time is the mean of."""
        return 2 if self.quick else 50

    @property
    def precision(self) -> Precision:
        """What `precision: auto` is here."""
        return resolve_precision("auto", self.device)

    @cached_property
    def stream(self) -> Path:
        """A built stream.

        Raises:
            ConfigError: none was given.
        """
        if self.data is not None:
            return self.data
        if not self.quick:
            raise ConfigError("--data is missing; give a built stream, such as `make device` packs.")
        build_stream("demo_split", 0, self.out, self.out / "stream")
        return self.out / "stream"

    def settings(self, epochs: int, learner: str = "par") -> Any:
        """The paper's (its defaults), or small ones, for so many epochs."""
        epochs = 1 if self.quick else epochs
        expert = ExpertSettings(channels=self.channels)
        config = Config("benchmark", (), (0,), {}, expert=expert, network=NetworkSettings(width=self.channels))
        return resolve(replace(config, recipe=Recipe(epochs=epochs), search=SearchSettings(epochs=epochs)), "", learner)


def wait(device: torch.device) -> None:
    """Until all that was started on the device is done."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def seconds_of(step: Callable[[], Any], plan: Plan) -> float:
    """Mean time of a step, after some to warm up."""
    for _ in range(1 if plan.quick else 5):
        step()
    wait(plan.device)
    started = time.perf_counter()
    for _ in range(plan.repeats):
        step()
    wait(plan.device)
    return (time.perf_counter() - started) / plan.repeats


def card(plan: Plan) -> Iterator[Row]:
    """The machine, and how fast it copies and multiplies."""
    versions = {"torch": torch.__version__, "python": platform.python_version(), "cuda": torch.version.cuda}
    yield {"what": hardware(plan.device), "value": ", ".join(f"{name} {value}" for name, value in versions.items())}
    yield {"what": "precision: auto", "value": plan.precision}
    if plan.device.type == "cuda":
        free, total = torch.cuda.mem_get_info(plan.device)
        yield {"what": "memory free / total, GB", "value": f"{free / 1e9:.1f} / {total / 1e9:.1f}"}
        yield {"what": "cuDNN", "value": torch.backends.cudnn.version()}
    block = torch.zeros(2**20 if plan.quick else 2**28, device=plan.device)
    rate = 2 * block.numel() * 4 / seconds_of(block.clone, plan) / 1e9
    yield {"what": "copy, GB/s", "value": round(rate, 1)}
    size = 128 if plan.quick else 4096
    for dtype in (torch.float32, torch.bfloat16):
        matrix = torch.randn(size, size, device=plan.device, dtype=dtype)
        with policy(plan.device, "float32"):
            seconds = seconds_of(lambda matrix=matrix: matrix @ matrix, plan)
        yield {"what": f"product of {size}x{size} in {dtype}, TFLOP/s", "value": round(2e-12 * size**3 / seconds, 2)}


def operations(plan: Plan) -> Iterator[Row]:
    """Forward and backward of every operation of a cell, batch 64: does each size have a kernel, and a fast one."""
    for channels in (4,) if plan.quick else (64, 16, 4):
        for name in GENOTYPE_OPERATIONS:
            for stride in (1, 2):
                operation = make_operation(name, channels, stride, affine=True).to(plan.device)
                operation.to(memory_format=torch.channels_last)
                shape = (64, channels, PIXELS, PIXELS)
                images = torch.randn(shape, device=plan.device).contiguous(memory_format=torch.channels_last)

                def step(operation: nn.Module = operation, images: Tensor = images) -> None:
                    with autocast(plan.device):
                        total = operation(images.requires_grad_()).float().sum()
                    total.backward()

                with policy(plan.device, plan.precision):
                    row = guarded(lambda step=step: {"ms": round(1e3 * seconds_of(step, plan), 3)})
                yield {"operation": name, "stride": stride, "channels": channels} | row


def methods(plan: Plan) -> Iterator[Row]:
    """Small runs of every method that save, restore and predict: first losses against a CPU's, bits of two runs and of
    captured steps."""
    for name in ("finetune", "par", "cat") if plan.quick else CASES:
        case = CASES[name]

        def run(case: Any = case) -> Row:
            expected = through(replace(case, tasks=1), CPU)[0][0]
            row: Row = {}
            for precision, tolerance in (("float32", 1e-3), (plan.precision, 0.2)):
                with policy(plan.device, precision):
                    losses, predictions = through(case, plan.device)
                difference = abs(losses[0] - expected)
                row[f"{precision} - CPU"] = round(difference, 6)
                row["near"] = row.get("near", True) and difference < tolerance
            for what, make in {"twice": None, "captured": cuda_graphs(plan.device, capture=True)}.items():
                said = io.StringIO()
                with policy(plan.device, plan.precision), capturing(make), redirect_stderr(said):
                    others, again = through(case, plan.device)
                row |= fallen_back(said)
                row[f"same bits {what}"] = losses == others and all(map(torch.equal, predictions, again))
            return row

        yield {"method": name} | guarded(run)


def extractor(plan: Plan) -> Iterator[Row]:
    """Features against a CPU's, and what TF32 would make of them."""
    generator = np.random.default_rng(0)
    pixels = generator.integers(0, 256, (8 if plan.quick else 128, 3, PIXELS, PIXELS), dtype=np.uint8)
    settings = ExtractorSettings(network="efficientnet_lite0", image_size=48)
    expected = load_extractor(settings, "cpu").features(pixels)
    there = load_extractor(settings, plan.device)

    def row(what: str, found: np.ndarray) -> Row:
        return {"what": what, "largest difference": float(np.abs(found - expected).max() / np.abs(expected).max())}

    yield row("as the stage extracts", there.features(pixels))
    if plan.device.type == "cuda":
        inputs = torch.from_numpy(pixels).to(plan.device).float() / 255
        inputs = nn.functional.interpolate(inputs, (48, 48), mode="bilinear", antialias=True)
        with torch.inference_mode(), torch.backends.cudnn.flags(enabled=True, allow_tf32=True):
            found = there.network(((inputs - there.mean) / there.std).contiguous(memory_format=torch.channels_last))
        yield row("with TF32", found.cpu().numpy())


class Bare:
    """A training step written out: forward, backward, clipping, SGD on buffers that stay in place."""

    def __init__(self, network: nn.Module, batch: int, plan: Plan, layout: torch.memory_format, teacher: bool = False):
        self.plan = plan
        self.network = network.to(plan.device).to(memory_format=layout).train()
        self.teacher = copy.deepcopy(self.network).eval() if teacher else None
        self.head = nn.Linear(network.n_features, CLASSES).to(plan.device)
        self.parameters = [*self.network.parameters(), *self.head.parameters()]
        self.optimizer = torch.optim.SGD(self.parameters, 0.01, momentum=0.9, weight_decay=0.003)
        images = torch.randn(batch, 3, PIXELS, PIXELS, device=plan.device)
        self.images = images.contiguous(memory_format=layout)
        self.labels = torch.randint(CLASSES, (batch,), device=plan.device)

    def __call__(self) -> None:
        with autocast(self.plan.device):
            features = self.network(self.images)
            loss = cross_entropy(self.head(features), self.labels)
            if self.teacher is not None:
                with torch.no_grad():
                    old = self.head(self.teacher(self.images))
                loss = loss + distillation(self.head(features), old, 2.0)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_([p for p in self.parameters if p.grad is not None], 10.0)
        self.optimizer.step()

    def captured(self) -> Callable[[], None]:
        """The same step as a CUDA graph."""
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                self()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        self.optimizer.zero_grad(set_to_none=True)
        with torch.cuda.graph(graph):
            self()
        return graph.replay


def times(title: Row, make: Callable[[], Bare], plan: Plan, precision: Precision) -> Iterator[Row]:
    """A row for the eager step and, on CUDA, one for the captured step."""
    for way in ("eager", "captured") if plan.device.type == "cuda" else ("eager",):

        def run(way: str = way) -> Row:
            with policy(plan.device, precision):
                step = make()
                seconds = seconds_of(step.captured() if way == "captured" else step, plan)
            return {"ms": round(1e3 * seconds, 3), "images/s": round(len(step.labels) / seconds)}

        yield title | {"precision": precision, "way": way} | guarded(run)


class Whole(trainer.Trainable):
    """A network with a head, and a teacher for a joining task, for the trainer."""

    capturable = True

    def __init__(self, network: nn.Module, plan: Plan, teacher: bool = False):
        super().__init__()
        self.network, self.head = network, nn.Linear(network.n_features, CLASSES)
        self.to(plan.device)
        self.teacher = copy.deepcopy(self.network) if teacher else None

    def modules_to_train(self) -> list[nn.Module]:
        return [self.network, self.head]

    def loss(self, batch: trainer.Batch) -> Tensor:
        features = self.network(batch.images)
        loss = cross_entropy(self.head(features), batch.labels)
        if self.teacher is not None:
            loss = loss + distillation(self.head(features), self.head(self.teacher(batch.images)).detach(), 2.0)
        return loss

    def predict(self, images: Tensor) -> Tensor:
        return self.head(self.network(images))


def fitted(
    network: nn.Module, plan: Plan, batch: int, capture: bool, teacher: bool = False
) -> tuple[Row, list[Tensor]]:
    """Two epochs by the trainer: the time of a step in the second and what the first took more; losses and weights."""

    def images(count: int, augment: Sequence[str]) -> Images:
        drawn = np.random.default_rng(0)
        pixels = drawn.integers(0, 256, (count, 3, PIXELS, PIXELS), dtype=np.uint8)
        return Images(pixels, np.arange(count) % CLASSES, (0.5,) * 3, (0.25,) * 3, augment, plan.device)

    train, valid = images(batch * plan.repeats, ("crop", "flip")), images(CLASSES, ())
    torch.manual_seed(0)
    model = Whole(network, plan, teacher)
    make, said = recording(plan) if capture else None, io.StringIO()
    with policy(plan.device, plan.precision), capturing(make), redirect_stderr(said):
        log = trainer.fit(model, train, valid, Recipe(epochs=2, batch_size=batch), "benchmark", keep_best=False)
    first, second = (row["seconds"] for row in log)
    row = {"ms": round(1e3 * second / plan.repeats, 3), "images/s": round(batch * plan.repeats / second)}
    row |= {"first epoch, ms more": round(1e3 * (first - second), 1)} | fallen_back(said)
    return row, [*model.state_dict().values()]


def fallen_back(said: io.StringIO) -> Row:
    """What a fit wrote to stderr, where it could not capture its steps."""
    return {"not captured": " ".join(said.getvalue().split())} if "not be captured" in said.getvalue() else {}


def recording(plan: Plan) -> Callable[[torch.device], Recorder]:
    """CUDA graphs; on a CPU calls, which show that the parts run."""
    return cuda_graphs(plan.device, capture=True) or Calls


def steps(plan: Plan) -> Iterator[Row]:
    """A step of an expert: by batch, precision, layout, and by the trainer."""
    layouts = {"channels_last": torch.channels_last, "NCHW": torch.contiguous_format}
    for batch in (8,) if plan.quick else (32, 64, 128):
        for precision in dict.fromkeys((plan.precision, "float32")):
            for name, layout in layouts.items():

                def make(batch: int = batch, layout: torch.memory_format = layout) -> Bare:
                    return Bare(Expert(DARTS_V1, 4, plan.channels), batch, plan, layout)

                yield from times({"batch": batch, "layout": name}, make, plan, precision)

        def by_the_trainer(batch: int = batch) -> Row:
            return fitted(Expert(DARTS_V1, 4, plan.channels), plan, batch, capture=False)[0]

        title = {"batch": batch, "layout": "channels_last", "precision": plan.precision, "way": "trainer"}
        yield title | guarded(by_the_trainer)


def capture(plan: Plan) -> Iterator[Row]:
    """The trainer's steps called and captured: times, what a capture costs, whether the bits are the same.

    A search would have to capture the path of every epoch anew: worth it if the first epoch takes less than its steps
    gain.
    """
    made: dict[str, Callable[[], nn.Module]] = {
        "expert": lambda: Expert(DARTS_V1, 4, plan.channels),
        "joining task with teacher": lambda: Expert(DARTS_V1, 4, plan.channels),
        "light ResNet18": lambda: LightResNet(plan.channels),
        "path of the search network": lambda: some_path(plan),
    }
    for name, make in made.items():
        weights: dict[str, list[Tensor]] = {}

        def run(way: str, name: str = name, make: Any = make, weights: dict[str, list[Tensor]] = weights) -> Row:
            torch.manual_seed(0)
            row, weights[way] = fitted(make(), plan, 8 if plan.quick else 64, way == "captured", "teacher" in name)
            if way == "captured" and plan.device.type == "cuda":  # a CPU's called steps have another optimiser
                row["same bits"] = all(map(torch.equal, weights["called"], weights["captured"]))
            return row

        for way in ("called", "captured"):
            yield {"network": name, "precision": plan.precision, "way": way} | guarded(partial(run, way))


def some_path(plan: Plan) -> Supernet:
    """The search network with a random path."""
    network, drawn = Supernet(4, plan.channels), np.random.default_rng(0)
    network.choose({kind: drawn.integers(0, 6, 14).tolist() for kind in KINDS})
    return network


def networks(plan: Plan) -> Iterator[Row]:
    """A step of the other networks at batch 64."""

    made: dict[str, Callable[[], Bare]] = {
        "light ResNet18": lambda: bare(LightResNet(plan.channels)),
        "joining task with teacher": lambda: bare(Expert(DARTS_V1, 4, plan.channels), teacher=True),
        "path of the search network": lambda: bare(some_path(plan)),
    }

    def bare(network: nn.Module, teacher: bool = False) -> Bare:
        return Bare(network, 8 if plan.quick else 64, plan, torch.channels_last, teacher)

    for name, make in made.items():
        yield from times({"network": name}, make, plan, plan.precision)


def profile(plan: Plan) -> Iterator[Row]:
    """Where the time of an expert's step goes."""
    step = Bare(Expert(DARTS_V1, 4, plan.channels), 8 if plan.quick else 64, plan, torch.channels_last)
    activities = [torch.profiler.ProfilerActivity.CPU]
    if plan.device.type == "cuda":
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    with policy(plan.device, plan.precision):
        step()
        wait(plan.device)
        with torch.profiler.profile(activities=activities) as found:
            step()
            wait(plan.device)

    def microseconds(event: Any) -> float:
        return event.self_device_time_total if plan.device.type == "cuda" else event.self_cpu_time_total

    for event in sorted(found.key_averages(), key=microseconds, reverse=True)[:15]:
        yield {"kernel": event.key[:70], "calls": event.count, "ms": round(microseconds(event) / 1e3, 3)}


def processes(plan: Plan) -> Iterator[Row]:
    """Chains side by side: workers share a card."""
    n_images = load_stream(plan.stream).tasks[0].counts["train"]
    settings = plan.settings(epochs=2, learner="finetune")
    for workers in (1, 2) if plan.quick else (1, 2, 4, 8):

        def run(workers: int = workers) -> Row:
            job = ChainJob(settings, plan.stream, 0, (ChainTask(0),), (n_images,), "ends", plan.device)
            job = replace(job, precision=plan.precision)
            on_cards = Workers(workers, workers, torch.cuda.device_count())
            jobs = [replace(job, seed=seed) for seed in range(workers)]
            started = time.perf_counter()
            outcome = run_jobs(jobs, Store(plan.out / f"store {workers}"), on_cards, f"{workers} processes")
            seconds = time.perf_counter() - started
            assert not outcome.failures, outcome.failures
            images = sum(job.cost() for job in jobs)
            return {"seconds, start included": round(seconds, 1), "images/s": round(images / seconds)}

        yield {"workers": workers} | guarded(run)


def task(plan: Plan) -> Iterator[Row]:
    """One task by the paper's recipe, as the stage learns it."""
    settings, stream = plan.settings(epochs=100), load_stream(plan.stream)
    first, store = stream.tasks[0], Store(plan.out / "store")
    chain = (ChainTask(0, DARTS_V1.to_json()),)
    job = ChainJob(settings, plan.stream, 0, chain, (first.counts["train"],), "ends", plan.device)
    job = replace(job, precision=plan.precision)
    job.run(store, lambda n_images: None)
    learned = assemble([job], store)
    accuracy = (learned.predictions["0/0"] == first.split("test").labels).mean()
    yield {
        "task": f"{stream.name}, {first.counts['train']} images, {settings.recipe.epochs} epochs",
        "seconds": round(learned.steps[0]["seconds"], 1),
        "median s an epoch": round(statistics.median(row["seconds"] for row in learned.log), 3),
        "test accuracy": round(float(accuracy), 4),
    }


def search(plan: Plan) -> Iterator[Row]:
    """One architecture search."""
    n_train = load_stream(plan.stream).tasks[0].counts["train"]
    store = Store(plan.out / "store")
    job = SearchJob(plan.settings(epochs=100), plan.stream, 0, 0, n_train, plan.device, precision=plan.precision)
    job.run(store, lambda n_images: None)
    entry = store.get(job.key)
    yield {"epochs": len(entry["history"]), "seconds": round(entry["seconds"], 1), "cell": str(entry["genotype"])}


PARTS: dict[str, Callable[[Plan], Iterator[Row]]] = {
    part.__name__: part
    for part in (card, operations, methods, extractor, steps, capture, networks, profile, processes, task, search)
}


def guarded(run: Callable[[], Row]) -> Row:
    """What ``run`` returns, or its error."""
    try:
        return run()
    except Exception as error:
        return {"error": f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"}


def measure(plan: Plan, names: Sequence[str]) -> dict[str, Any]:
    """Run the parts; write what is there after each."""
    found: dict[str, Any] = {}
    for name in names:
        rows: list[Row] = []
        started = time.perf_counter()
        found[name] = {"rows": rows}
        try:
            for row in PARTS[name](plan):
                rows.append(row)
                print(f"{name}: {row}", flush=True)
        except Exception as error:
            found[name]["error"] = f"{type(error).__name__}: {error}"
            traceback.print_exc()
        found[name]["seconds"] = round(time.perf_counter() - started, 1)
        write_json(plan.out / "device.json", found)
        (plan.out / "device.md").write_text("\n".join(map("\n".join, map(table, found.items()))), encoding="utf-8")
    return found


def table(part: tuple[str, dict[str, Any]]) -> list[str]:
    """Lines of Markdown of one part's result."""
    name, found = part
    columns = list(dict.fromkeys(key for row in found["rows"] for key in row))
    lines = [f"## {name} ({found['seconds']} s)", ""]
    if columns:
        lines += [f"| {' | '.join(columns)} |", "|" + "---|" * len(columns)]
        lines += [f"| {' | '.join(str(row.get(column, '')) for column in columns)} |" for row in found["rows"]]
    return [*lines, *([f"\nfailed: {found['error']}"] if "error" in found else []), ""]


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.device", description=__doc__.split("\n")[0])
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"among {', '.join(PARTS)}; all by default")
    parser.add_argument("--device", default="cuda", help="cuda or cpu; %(default)s")
    parser.add_argument("--data", type=Path, metavar="DIR", help="a built stream")
    parser.add_argument("--out", type=Path, metavar="DIR", default=Path("device/results"), help="%(default)s")
    parser.add_argument("--quick", action="store_true", help="tiny networks: does every part run?")
    options = parser.parse_args()
    if unknown := set(options.parts) - set(PARTS):
        parser.error(f"no part {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    device = torch.device(options.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        parser.error("torch finds no GPU here; try --device cpu --quick")
    options.out.mkdir(parents=True, exist_ok=True)
    plan = Plan(device, options.data, options.out.resolve(), options.quick)
    found = measure(plan, options.parts or list(PARTS))
    print((plan.out / "device.md").read_text(encoding="utf-8"))
    failed = [name for name, part in found.items() if "error" in part or any("error" in row for row in part["rows"])]
    print(f"{plan.out / 'device.json'}: {len(found)} parts, with errors: {', '.join(failed) or 'none'}")
    raise SystemExit(bool(failed))


if __name__ == "__main__":
    main()
