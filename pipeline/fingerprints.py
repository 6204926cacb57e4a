"""Stage ``fingerprints``: what the sources of every stream contain, so that DVC sees when they change.

``python -m pipeline.fingerprints --full`` reads every file again, whatever its times say.
"""

from __future__ import annotations

import argparse

from par import settings
from par.config import resolve_path
from par.files import read_json, write_json
from par.streams.fingerprint import DEFAULT_FOLDER, Digests, contents
from pipeline.stage import FINGERPRINTS, STREAMS, mistakes_in_one_sentence


def main(full: bool = False) -> None:
    """Write ``data/fingerprints/<stream>.json``: the contents of each source in words (null: it is not there).

    A file stays untouched where nothing changed, and those of streams that params.yaml does not list stay too: they
    are what is known of data sets that may be gone.
    """
    config = settings.load()
    data_dir, digests = resolve_path(config.data_dir), Digests(resolve_path(DEFAULT_FOLDER), full)
    for stream in config.streams:
        path = FINGERPRINTS / f"{stream}.json"
        before = read_json(path) if path.is_file() else {}
        now = {}
        for alias, content in contents(stream, data_dir, digests).items():
            known = before.get(alias)
            now[alias] = content.words if content.there else known or content.words
            if not content.there:
                consequence = _consequence(stream, known is not None, content.words is not None)
                print(f"{stream}: {alias} is not in {data_dir}; {consequence}")
        if now != before:
            write_json(path, now)
            print(f"{stream}: its sources are {'new' if not before else 'not what they were'}")
    print(f"sources of {len(config.streams)} streams checked, new or changed files read: {digests.n_read}")


def _consequence(stream: str, known: bool, on_the_net: bool) -> str:
    """What follows from a data set that is not there: ``known`` from an earlier run, or ``on_the_net``."""
    if known and ((STREAMS / stream).is_dir() or not on_the_net):
        return "what was built from it stays in use, and nothing can be built from it until it is back."
    return f"the stage stream will {'download it' if on_the_net else 'say where it is looked for'}."


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m pipeline.fingerprints", description=__doc__.splitlines()[0])
    parser.add_argument("--full", action="store_true", help="read every file again")
    options = parser.parse_args()
    with mistakes_in_one_sentence("fingerprints"):
        main(options.full)
