"""Where a report's numbers come from, in words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from par.config import PAR, Config
from par.files import canonical_json
from par.methods import load_method
from par.numerics import SWITCHES
from par.schema import to_plain
from par.settings import resolve

DEMO = "demo"  # the preset whose numbers say nothing about the paper's streams


def stamp(
    config: Config,
    streams: Iterable[str],
    results: Mapping[str, Any],
    plans: Mapping[str, Mapping[str, Any]],
    search_seconds: Mapping[str, Mapping[str, Mapping[str, Mapping[str, Any]]]],
    digests: Mapping[str, Mapping[str, str]],
    provenance: Mapping[str, Any],
) -> dict[str, str]:
    """Where the numbers of ``streams`` come from, as name -> words.

    Args:
        results, plans, search_seconds, digests, provenance: see :class:`par.reporting.report.Inputs`; the hardware is
            in the first, the extractor in the second.
    """
    streams = list(streams)
    hardware = dict.fromkeys(results[stream]["hardware"]["device"] for stream in streams if stream in results)
    used = [plans[stream][PAR]["extractor"] for stream in streams if PAR in plans.get(stream, {})]
    workers = "one worker a core or card" if config.workers == "auto" else f"{config.workers} workers"
    extractors = dict.fromkeys(f"{extractor['name']} (sha256 {extractor['digest'][:12]})" for extractor in used)
    return {
        "Preset": f"{config.preset} (DEMO)" if config.preset == DEMO else config.preset,
        "Commit": provenance["commit"] + ("-dirty" if provenance["dirty"] else ""),
        "Seeds": ", ".join(map(str, config.seeds)),
        "Extractor": "; ".join(extractors) or "not run",
        "Hardware": f"{'; '.join(hardware)}; {workers} of one thread" if hardware else "not run",
        "Bits": bits({stream: results[stream] for stream in streams if stream in results}),
        "Epochs": _epochs(config, streams),
        "Data": _data(digests, streams),
        "Time": _time(results, search_seconds, streams),
        "Software": f"Python {provenance['python']}, torch {provenance['torch']}",
    }


def _epochs(config: Config, streams: Iterable[str]) -> str:
    """Epochs a task by the recipes, in as few words as they allow."""
    streams, streams_with = [stream for stream in streams if config.learners(stream)], dict[str, list[str]]()
    if not streams:
        return "nothing is trained"
    for stream in streams:
        learners_with: dict[int, list[str]] = {}
        for learner in config.learners(stream):
            learners_with.setdefault(config.effective_recipe(stream, learner).epochs, []).append(learner)
        if len(learners_with) == 1:
            words = f"{next(iter(learners_with))} a task"
        else:
            words = ", ".join(f"{epochs} a task ({', '.join(names)})" for epochs, names in learners_with.items())
        streams_with.setdefault(words, []).append(stream)
    if len(streams_with) == 1:
        words = next(iter(streams_with))
    else:
        words = "; ".join(f"{', '.join(names)}: {words}" for words, names in streams_with.items())
    of_search = {config.effective("search", learner).epochs for s in streams for learner in config.par_learners(s)}
    return f"{words}; search {', '.join(map(str, sorted(of_search or {config.search.epochs})))}"


def bits(results: Mapping[str, Any]) -> str:
    """What decided the last bits of a report's numbers, in words.

    Args:
        results: stream -> content of ``results/<stream>.json``.
    """
    found = dict.fromkeys(_bits_in_words(result.get("hardware", {}).get("bits")) for result in results.values())
    return "; or ".join(found) or "nothing was run"


def bits_of_both(here: Mapping[str, Any], there: Mapping[str, Any]) -> tuple[str, ...]:
    """A line on how two reports were computed, or one each where they differ.

    Args:
        here, there: as for :func:`bits`.
    """
    ours, theirs = bits(here), bits(there)
    return (f"Both: {ours}.",) if ours == theirs else (f"Here: {ours}.", f"There: {theirs}.")


def effective_settings(config: Config) -> list[tuple[str, dict[str, Any]]]:
    """What decides how each learner learns, after all overrides: (who and on which streams, settings), equal ones once.

    A block that the learner does not read is left out, and of a variant of PAR all that is as PAR's.
    """
    groups: dict[str, tuple[dict[str, Any], dict[str, list[str]]]] = {}
    for stream in config.streams:
        for learner in config.learners(stream):
            shown = _settings_shown(config, stream, learner)
            if learner != PAR and config.method_of(learner) == PAR:
                shown = _differing(shown, _settings_shown(config, stream, PAR))
            _, who = groups.setdefault(canonical_json(shown), (shown, {}))
            who.setdefault(learner, []).append(stream)
    return [
        ("; ".join(f"{learner} on {', '.join(streams)}" for learner, streams in who.items()), shown)
        for shown, who in groups.values()
    ]


def _settings_shown(config: Config, stream: str, learner: str) -> dict[str, Any]:
    """The settings of a learner, "never" for a threshold that is below every score."""
    settings = resolve(config, stream, learner)
    blocks = load_method(settings.method).blocks
    shown = {name: to_plain(getattr(settings, name)) for name in ("method", "hyper", "recipe", *blocks)}
    if settings.method == PAR:
        routing = to_plain(config.routing(learner))
        never = {name: "never" for name in ("alpha", "beta") if routing[name] == float("-inf")}
        shown |= {"search": to_plain(settings.search), "routing": routing | never}
    return shown


def _differing(settings: dict[str, Any], others: dict[str, Any]) -> dict[str, Any]:
    """What of nested ``settings`` is not as in ``others``, which has the same keys."""
    found = {}
    for name, value in settings.items():
        if isinstance(value, dict) and value != others[name]:
            found[name] = _differing(value, others[name])
        elif value != others[name]:
            found[name] = value
    return found


def _data(digests: Mapping[str, Mapping[str, str]], streams: Iterable[str]) -> str:
    """The digests of the streams' tasks, by stream in the order of the seeds."""
    known = []
    for stream in streams:
        of_seeds = digests.get(stream, {})
        if of_seeds:
            known.append(f"{stream} {', '.join(of_seeds[seed][:12] for seed in sorted(of_seeds, key=int))}")
    return f"sha256 of the tasks by seed: {'; '.join(known)}" if known else "not built"


def _time(results: Mapping[str, Any], search_seconds: Mapping[str, Any], streams: Iterable[str]) -> str:
    """Wall time of every distinct step and search, as hours."""
    steps, searches = set(), set()
    for stream in streams:
        for by_seed in results.get(stream, {}).get("learners", {}).values():
            for seed, entry in by_seed.items():
                # learners that share a step in the store have the same seconds, to the last bit
                steps |= {(stream, seed, step["task"], step["seconds"]) for step in entry["steps"]}
        for by_seed in search_seconds.get(stream, {}).values():
            for seed, by_task in by_seed.items():
                searches |= {(stream, seed, task, search["seconds"]) for task, search in by_task.items()}
    training, search = (sum(seconds for *_, seconds in distinct) / 3600 for distinct in (steps, searches))
    return (
        f"{training:.2f} h of training and {search:.2f} h of search: the wall time of every step and search added up, "
        "one that several learners share counted once"
    )


def _bits_in_words(recorded: Mapping[str, Any] | None) -> str:
    if not recorded:
        return "not recorded"
    implied = SWITCHES if recorded["numerics"] == "portable" else {}
    others = [f"{name}={value}" for name, value in recorded["switches"].items() if implied.get(name) != value]
    return ", ".join(
        [
            f"numerics {recorded['numerics']}",
            f"torch {recorded['torch']} with kernels for {recorded['cpu_capability']}",
            recorded["precision"],
            f"{recorded['threads']} thread a step",
            *([f"set in the environment: {' '.join(others)}"] if others else []),
        ]
    )
