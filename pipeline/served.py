"""A finished run as ``mlflow.pyfunc.load_model`` and ``mlflow models serve`` load it; see `pipeline.model_folder`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import torch
from mlflow.exceptions import BAD_REQUEST, MlflowException

from par.use.service import RequestError, Service


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
        """A row an image: columns ``image`` and ``task``, see :meth:`Service.answer`, to those of the signature in
        `pipeline.model_folder`. Without the column ``task`` every task is ``auto``.

        Raises:
            RequestRefused: see :class:`par.use.service.RequestError`.
        """
        try:
            tasks = table["task"] if "task" in table else pd.Series([None] * len(table))
            names = [None if missing else name for name, missing in zip(tasks, tasks.isna())]
            found = self._service.answer(table["image"].tolist(), names)
        except RequestError as error:
            raise RequestRefused(str(error)) from None
        return pd.DataFrame(
            {
                "task": [one.tasks[0].name for one in found],
                "class": [one.classes[0] for one in found],
                "probability": [one.probabilities[0] for one in found],
                "tasks": [[task.name for task in one.tasks] for one in found],
                "classes": [list(one.classes) for one in found],
                "probabilities": [list(one.probabilities) for one in found],
            }
        )


def _load_pyfunc(path: str) -> Served:
    """MLflow's entry; ``path`` is the folder that :func:`par.use.card.write_service` wrote."""
    torch.set_num_threads(1)
    return Served(Service(Path(path)))
