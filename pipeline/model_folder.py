"""The folder of an MLflow model of a finished run; it loads MLflow, which takes seconds, and no torch."""

from __future__ import annotations

import base64
import io
from importlib.metadata import version
from pathlib import Path

import mlflow.pyfunc
import pandas as pd
from mlflow.models import Model, ModelSignature
from mlflow.types.schema import Array, ColSpec, DataType, Schema
from PIL import Image

from par.files import read_json, write_atomically

NEEDED = ("par-pipeline", "mlflow", "numpy", "pandas", "pillow", "torch")
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


def save_model(path: Path, service: Path, model: Model | None = None) -> None:
    """Write the folder ``service`` of :func:`par.use.card.write_service` as an MLflow model, with an image of one
    colour as its example. Nothing in it is pickled: MLflow calls `pipeline.served`, so it needs this package.

    Args:
        model: what MLflow knows of it already, such as its id.
    """
    card = read_json(service / "card.json")
    task = card["tasks"][0]
    height, width = task["image_size"]
    example = io.BytesIO()
    Image.new("RGB", (width, height), "grey").save(example, format="PNG")
    row = {"image": base64.b64encode(example.getvalue()).decode(), "task": str(task["index"])}

    def write(draft: Path) -> None:
        mlflow.pyfunc.save_model(
            draft,
            loader_module="pipeline.served",
            data_path=service,
            signature=SIGNATURE,
            input_example=pd.DataFrame([row]),
            pip_requirements=[f"{package}=={version(package)}" for package in NEEDED],
            metadata={"stream": card["stream"]["name"], "learner": card["learner"]["learner"]},
            mlflow_model=model,
        )

    write_atomically(path, write)
