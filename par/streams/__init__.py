"""Streams of tasks: where the images come from, how tasks are cut from them, how they are stored."""

from __future__ import annotations

from par.streams.definition import DEFINITIONS, known_streams
from par.streams.sources import SourceError
from par.streams.stream import Split, Stream, Task, build_stream, load_stream

__all__ = ["DEFINITIONS", "SourceError", "Split", "Stream", "Task", "build_stream", "known_streams", "load_stream"]
