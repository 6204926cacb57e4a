"""The commands of the README's section on using what was learned do what it says."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess

import pandas as pd
import pytest
from PIL import Image

from tests.project import REPOSITORY, environment
from tests.test_readme import write_images


@pytest.mark.slow
def test_the_commands_run_as_they_are_printed(project, pictures):
    write_images(project / "data/sources/pets", (40, 30, 3))
    shutil.copytree(pictures / "0", project / "photos")
    shutil.make_archive(str(project / "photos"), "zip", project / "photos")
    (block,) = re.findall(r"<!-- commands -->\n```bash\n(.*?)```", (REPOSITORY / "README.md").read_text(), re.DOTALL)
    printed, has_extra = {}, all(map(importlib.util.find_spec, ("onnxruntime", "onnxscript", "safetensors")))
    for line in block.splitlines():
        command = line.split("#")[0].split()
        if "pipeline.export" in command and "--task" in command and not has_extra:
            continue
        done = subprocess.run(command, cwd=project, env=environment(project), capture_output=True, text=True)
        assert done.returncode == 0, f"{line}\n{done.stderr}"
        printed[command[2]] = done.stdout
    assert set(printed) >= {"pipeline.ask", "pipeline.predict"}
    assert "PAR would " in printed["pipeline.ask"] and Image.open(project / "ask_pets.png").width > 800
    assert len(pd.read_csv(project / "classes.csv")) == len(list((project / "photos").iterdir()))
    names = {path.name for path in (project / "exported/demo_split/par/0").iterdir()}
    assert names == {"mlflow"} | ({"model.safetensors", "card.json", "task0.onnx"} if has_extra else set())
