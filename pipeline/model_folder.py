"""The folder of an MLflow model of a finished run; it loads MLflow, which takes seconds, and no torch."""

from __future__ import annotations

import base64
import io
import shutil
import tempfile
from importlib.metadata import version
from pathlib import Path

import mlflow.pyfunc
import pandas as pd
from mlflow.models import Model, ModelSignature
from mlflow.types.schema import Array, ColSpec, DataType, Schema
from PIL import Image

from par.files import read_json, write_atomically

NEEDED = ("par-pipeline", "mlflow", "numpy", "pandas", "pillow", "torch")
DATA = "data/learner"  # where a model's folder holds its learner
SIGNATURE = ModelSignature(
    inputs=Schema([ColSpec(DataType.string, "image"), ColSpec(DataType.string, "task", required=False)]),
    outputs=Schema(
        [
            ColSpec(DataType.string, "task"),
            ColSpec(DataType.string, "class"),
            ColSpec(DataType.double, "probability"),
            ColSpec(Array(DataType.string), "tasks"),
            ColSpec(Array(DataType.string), "classes"),
            ColSpec(Array(DataType.double), "probabilities"),
        ]
    ),
)


class Writer:
    """Writes learners as MLflow models.

    What is equal in all of them for images of one size (environment, signature, an image of one colour as the example)
    is made once, by MLflow, which takes longer over it than all else takes; it is kept in the folder ``workplace``.
    """

    def __init__(self, workplace: Path) -> None:
        self.workplace = workplace
        self._frames: dict[tuple[int, int, str], tuple[Path, Model]] = {}

    def save(self, path: Path, service: Path, model: Model | None = None) -> None:
        """Write the folder ``service`` of :func:`par.use.card.write_service` as an MLflow model. Nothing in it is
        pickled: MLflow calls `pipeline.served`, so it needs this package.

        Args:
            model: what MLflow knows of it already, such as its id.
        """
        card = read_json(service / "card.json")
        task = card["tasks"][0]
        height, width = task["image_size"]
        frame, shared = self._frame(height, width, str(task["index"]))
        known = model or Model()
        known.flavors.update(shared.flavors)
        known.signature = shared.signature
        known.saved_input_example_info = shared.saved_input_example_info or {}
        known.metadata = {"stream": card["stream"]["name"], "learner": card["learner"]["learner"]}
        # MLflow's count of bytes: the example and the learner's files, not those of the environment
        known.model_size_bytes = (shared.model_size_bytes or 0) + sum(file.stat().st_size for file in service.iterdir())

        def write(draft: Path) -> None:
            shutil.copytree(frame, draft)
            shutil.copytree(service, draft / DATA, dirs_exist_ok=True)
            known.save(draft / "MLmodel")

        write_atomically(path, write)

    def _frame(self, height: int, width: int, task: str) -> tuple[Path, Model]:
        """A model without a learner, as a folder and as MLflow reads it."""
        if (height, width, task) not in self._frames:
            nothing = self.workplace / Path(DATA).name
            nothing.mkdir(exist_ok=True)
            example = io.BytesIO()
            Image.new("RGB", (width, height), "grey").save(example, format="PNG")
            row = {"image": base64.b64encode(example.getvalue()).decode(), "task": task}
            frame = self.workplace / f"frame{len(self._frames)}"
            mlflow.pyfunc.save_model(
                frame,
                loader_module="pipeline.served",
                data_path=nothing,
                signature=SIGNATURE,
                input_example=pd.DataFrame([row]),
                pip_requirements=[f"{package}=={version(package)}" for package in NEEDED],
            )
            self._frames[height, width, task] = frame, Model.load(frame)
        return self._frames[height, width, task]


def save_model(path: Path, service: Path) -> None:
    """Write one learner as an MLflow model: see :meth:`Writer.save`."""
    with tempfile.TemporaryDirectory() as workplace:
        Writer(Path(workplace)).save(path, service)
