"""Files that are never half-written, whoever writes at the same time."""

from __future__ import annotations

import errno
import multiprocessing
import os
import resource
import time

import numpy as np
import pytest
import torch

from par.files import in_words, write_atomically, write_npz, write_tensors, write_text

N_FILES = 5


def _write_folders(path, writer: int, seconds: float, failures) -> None:
    end, number = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        text = f"{writer} {number}"

        def write(draft, text=text):
            draft.mkdir()
            for name in range(N_FILES):
                (draft / str(name)).write_text(text)

        try:
            write_atomically(path, write)
        except OSError as error:
            failures.put(repr(error))
        number += 1


def _read(name: str, folder: int) -> bytes:
    file = os.open(name, os.O_RDONLY, dir_fd=folder)
    try:
        return os.read(file, 100)
    finally:
        os.close(file)


def test_writers_of_one_folder_never_fail_and_no_reader_meets_a_half(tmp_path):
    context, path = multiprocessing.get_context("fork"), tmp_path / "out"
    failures = context.Queue()
    writers = [context.Process(target=_write_folders, args=(path, number, 1.5, failures)) for number in range(3)]
    for writer in writers:
        writer.start()
    n_read = 0
    while any(writer.is_alive() for writer in writers):
        try:
            folder = os.open(path, os.O_RDONLY)  # what is opened stays the same folder, whatever takes its name
        except FileNotFoundError:
            continue
        try:
            names = os.listdir(folder)
            if names:  # none: the folder was replaced and is being deleted
                assert len({_read(name, folder) for name in names}) == 1
                n_read += len(names) == N_FILES
        except FileNotFoundError:
            pass  # being deleted
        finally:
            os.close(folder)
    for writer in writers:
        writer.join()
    assert failures.empty(), failures.get()
    assert n_read > 10
    assert sorted(file.name for file in path.iterdir()) == [str(number) for number in range(N_FILES)]
    assert list(tmp_path.iterdir()) == [path], "nothing is left beside it"


def test_the_last_writer_wins_over_a_folder_a_link_and_a_file(tmp_path):
    def write(draft):
        draft.mkdir()
        (draft / "new").touch()

    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "kept").touch()
    (tmp_path / "link").symlink_to("elsewhere")
    (tmp_path / "file").write_text("old")
    (tmp_path / "folder" / "deep").mkdir(parents=True)
    for name in ("link", "file", "folder"):
        write_atomically(tmp_path / name, write)
        assert [path.name for path in (tmp_path / name).iterdir()] == ["new"] and not (tmp_path / name).is_symlink()
    assert [path.name for path in (tmp_path / "elsewhere").iterdir()] == ["kept"]


def test_a_failing_write_leaves_what_was_there(tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "old").touch()

    def write(draft):
        draft.mkdir()
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        write_atomically(tmp_path / "out", write)
    assert [path.name for path in tmp_path.rglob("*")] == ["out", "old"]


@pytest.fixture
def small_files():
    """No file of this process may grow beyond 20 kB, which fails as a full disk does."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize(
    "write",
    [
        lambda path: write_text(path, "x" * 100_000),
        lambda path: write_npz(path, {"x": np.zeros(100_000)}),
        lambda path: write_tensors(path, {"x": torch.zeros(100_000)}),
    ],
)
def test_a_disk_that_refuses_is_one_sentence_with_the_file_and_leaves_nothing(tmp_path, small_files, write):
    with pytest.raises(OSError) as refused:
        write(tmp_path / "folder" / "file")
    assert refused.value.errno == errno.EFBIG
    sentence = in_words(refused.value)
    assert sentence.startswith(f"{tmp_path}/folder/file: File too large; raise the limit") and "\n" not in sentence
    assert list((tmp_path / "folder").iterdir()) == []
