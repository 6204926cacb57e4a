"""A finished run as files for other programs: ``python -m pipeline.export --stream S --learner par [--task T]``.

Writes ``model.safetensors`` and ``card.json``, and with ``--task`` the ONNX file of that task's network; this needs the
extra ``export``: ``pip install -e '.[export]'``. With ``--mlflow`` it writes an MLflow model instead.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import torch

from par.files import read_json
from par.settings import load
from par.use.card import write_service
from par.use.export import InexactError, export_onnx, export_state
from par.use.predictor import Predictor, find_task
from pipeline.models import stream_identity
from pipeline.stage import FEATURES, PROTOTYPES, RESULTS, RUNS, STREAMS, StageError, mistakes_in_one_sentence


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m pipeline.export", description=__doc__.splitlines()[0])
    parser.add_argument("--stream", required=True)
    parser.add_argument("--learner", default="par", help="a method or a variant of PAR (default: par)")
    parser.add_argument("--seed", type=int, default=0)
    kinds = parser.add_mutually_exclusive_group()
    kinds.add_argument("--task", help="a task's number or name: write its network as ONNX too")
    kinds.add_argument("--mlflow", action="store_true", help="write an MLflow model instead")
    parser.add_argument("--out", type=Path, help="folder (default: exported/<stream>/<learner>/<seed>)")
    options = parser.parse_args(arguments)
    with mistakes_in_one_sentence("export"):
        return _export(options)


def _export(options: argparse.Namespace) -> int:
    stream, learner, seed = options.stream, options.learner, str(options.seed)
    torch.set_num_threads(1)
    out = options.out or Path("exported") / stream / learner / seed
    predictor = Predictor.of_run(RUNS / stream / learner / seed, STREAMS / stream / seed)
    task = find_task(predictor.stream, options.task) if options.task is not None else None
    accuracies = _accuracies(stream, learner, seed)
    if options.mlflow:
        from pipeline.model_folder import save_model  # loads MLflow, which takes seconds

        with tempfile.TemporaryDirectory() as folder:
            features, prototypes = FEATURES / f"{stream}.npz", PROTOTYPES / f"{stream}.npz"
            identity = stream_identity(load(), predictor.stream, features, prototypes)
            service = Path(folder) / "learner"
            service.mkdir()
            write_service(service, RUNS / stream / learner / seed, predictor.stream, accuracies, identity)
            save_model(out / "mlflow", service)
        print(f"MLflow model: mlflow models serve --env-manager local --model-uri {out / 'mlflow'}")
        return 0
    export_state(predictor, out, accuracies)
    print(f"State: {out / 'model.safetensors'}, described in {out / 'card.json'}")
    if task is not None:
        path = out / f"task{task.index}.onnx"
        try:
            difference = export_onnx(predictor, task.index, task.split("test").images, path)
        except InexactError as error:
            raise StageError(f"{error} Use the safetensors.") from None
        print(f"ONNX: {path}; its logits differ from the learner's by {difference:.1e} of the largest at most")
    return 0


def _accuracies(stream: str, learner: str, seed: str) -> list[float] | None:
    """Accuracy on every task after the last one; None where the run was not evaluated."""
    path = RESULTS / f"{stream}.json"
    found = read_json(path)["learners"].get(learner, {}) if path.is_file() else {}
    return found[seed]["accuracy"][-1] if seed in found else None


if __name__ == "__main__":
    sys.exit(main())
