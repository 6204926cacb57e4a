"""An exported learner as an MLflow model: what ``mlflow.pyfunc.load_model`` and ``mlflow models serve`` load.

Nothing in it is pickled: MLflow calls :func:`_load_pyfunc` of this module, so the environment needs this package.
"""

from __future__ import annotations

import base64
import io
import tempfile
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import mlflow
import pandas as pd
import torch
from mlflow.exceptions import BAD_REQUEST, MlflowException
from mlflow.models import ModelSignature
from mlflow.types.schema import Array, ColSpec, DataType, Schema
from PIL import Image

from par.files import write_atomically
from par.use.predictor import Predictor
from par.use.service import RequestError, Service, write_service

NEEDED = ("par-pipeline", "mlflow", "numpy", "pandas", "pillow", "torch")
SIGNATURE = ModelSignature(
    inputs=Schema([ColSpec(DataType.string, "image"), ColSpec(DataType.string, "task")]),
    outputs=Schema(
        [
            ColSpec(DataType.string, "task"),
            ColSpec(DataType.string, "class"),
            ColSpec(DataType.double, "probability"),
            ColSpec(Array(DataType.string), "classes"),
            ColSpec(Array(DataType.double), "probabilities"),
        ]
    ),
)


class RequestRefused(MlflowException):
    """A request that cannot be answered (status 400).

    Its sentence stays as it is: MLflow's server would put the text of the whole request before it.
    """

    def __init__(self, sentence: str) -> None:
        self._sentence = sentence
        super().__init__(sentence, error_code=BAD_REQUEST)

    @property
    def message(self) -> str:
        return self._sentence

    @message.setter
    def message(self, text: str) -> None:
        pass


class Served:
    """The model as MLflow calls it."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def predict(self, table: pd.DataFrame, params: dict[str, Any] | None = None) -> pd.DataFrame:
        """A row an image: columns ``image`` (the file as base64) and ``task`` (number or name) to those of
        :data:`SIGNATURE`.

        Raises:
            RequestRefused: see :class:`par.use.service.RequestError`.
        """
        try:
            found = self._service.answer(table["image"].tolist(), table["task"].tolist())
        except RequestError as error:
            raise RequestRefused(str(error)) from None
        return pd.DataFrame(
            {
                "task": [one.tasks[0].name for one in found],
                "class": [one.classes[0] for one in found],
                "probability": [one.probabilities[0] for one in found],
                "classes": [list(one.classes) for one in found],
                "probabilities": [list(one.probabilities) for one in found],
            }
        )


def _load_pyfunc(path: str) -> Served:
    """MLflow's entry; ``path`` is the folder that :func:`par.use.service.write_service` wrote."""
    torch.set_num_threads(1)
    return Served(Service(Path(path)))


def save_model(predictor: Predictor, path: Path, accuracies: Sequence[float] | None = None) -> None:
    """Write a learner as an MLflow model, with an image of one colour as its example."""
    height, width = predictor.stream.tasks[0].image_size
    example = io.BytesIO()
    Image.new("RGB", (width, height), "grey").save(example, format="PNG")
    row = {"image": base64.b64encode(example.getvalue()).decode(), "task": predictor.stream.tasks[0].name}

    def write(draft: Path) -> None:
        with tempfile.TemporaryDirectory() as folder:
            data = Path(folder) / "learner"
            write_service(predictor, data, accuracies)
            mlflow.pyfunc.save_model(
                draft,
                loader_module=__name__,
                data_path=data,
                signature=SIGNATURE,
                input_example=pd.DataFrame([row]),
                pip_requirements=[f"{package}=={version(package)}" for package in NEEDED],
                metadata={"stream": predictor.stream.name, "learner": predictor.settings.learner},
            )

    write_atomically(path, write)
