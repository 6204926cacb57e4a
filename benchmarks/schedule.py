"""How far the pipeline scales: ``python -m benchmarks.schedule [params file] [--figure docs/cluster.png]``.

The searches and chains of a params file, presets/paper.yaml by default, are given to 1, 8, 64 and 512 workers in the
order of the executors, each taking what `python -m pipeline.fill --plan` says; nothing is computed. Streams that are
not built count by their definition. The table is Markdown, for docs/cluster.md.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from matplotlib.figure import Figure

from par.reporting.style import write_png
from par.settings import load
from par.steps.schedule import Schedule, Timed, simulate
from par.steps.store import Store
from pipeline.work import Survey, survey

WORKERS = (1, 8, 64, 512)
CURVE = tuple(2**power for power in range(11))
HOUR = 3600.0


def main() -> None:
    """Print the table and draw the figure."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.schedule", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("params", nargs="?", default="presets/paper.yaml")
    parser.add_argument("--figure", type=Path, default=Path("docs/cluster.png"))
    options = parser.parse_args()
    found = survey(load(options.params), Store("/nonexistent"))  # as if nothing were done
    schedules = {name: _schedules(jobs) for name, jobs in _graphs(found).items()}
    for name, curve in schedules.items():
        print(f"{name}: {curve[1].work / HOUR:,.0f} hours of one worker\n")
        print("| workers | makespan | utilisation | longest chain | limited by |\n|---|---|---|---|---|")
        for workers in WORKERS:
            one = curve[workers]
            print(
                f"| {workers} | {one.makespan / HOUR:,.0f} h | {one.utilisation:.0%} | {one.critical / HOUR:,.0f} h | "
                f"{one.limit} |"
            )
        print()
    print("Longest (hours with the search before it):")
    for hours, what in _longest(found)[:8]:
        print(f"  {hours:7.0f}  {what}")
    write_png(_figure(schedules), options.figure)
    print(f"Figure: {options.figure}")


def _graphs(found: Survey) -> dict[str, list[Timed]]:
    """All work, and all but the two streams with the longest chains."""
    jobs = {work: Timed(work.key, work.after, work.seconds(found.throughput)) for work in found.work}
    longest = {stream: max(j.weight for w, j in jobs.items() if w.stream == stream) for stream in _streams(found)}
    left_out = sorted(longest, key=lambda stream: -longest[stream])[:2]
    rest = [timed for work, timed in jobs.items() if work.stream not in left_out]
    return {"all streams": list(jobs.values())} | ({f"without {' and '.join(left_out)}": rest} if rest else {})


def _streams(found: Survey) -> set[str]:
    return {work.stream for work in found.work}


def _schedules(jobs: list[Timed]) -> dict[int, Schedule]:
    return {workers: simulate(jobs, workers) for workers in sorted({*WORKERS, *CURVE})}


def _longest(found: Survey) -> list[tuple[float, str]]:
    """Hours and names of the longest chains, one a stream and learner."""
    seconds = {work.key: work.seconds(found.throughput) for work in found.work}
    longest: dict[str, float] = {}
    for work in found.work:
        name = f"{work.learner} on {work.stream}, {work.n_tasks} tasks in a chain"
        longest[name] = max(longest.get(name, 0.0), (seconds[work.key] + seconds.get(work.after or "", 0.0)) / HOUR)
    return sorted(((hours, name) for name, hours in longest.items()), reverse=True)


def _figure(schedules: dict[str, dict[int, Schedule]]) -> Figure:
    figure = Figure(figsize=(8, 3.2), layout="constrained")
    makespan, utilisation = figure.subplots(1, 2)
    for name, curve in schedules.items():
        workers = sorted(curve)
        (line,) = makespan.loglog(workers, [curve[n].makespan / HOUR for n in workers], marker=".", label=name)
        makespan.axhline(curve[1].critical / HOUR, color=line.get_color(), linestyle=":", linewidth=1)
        utilisation.semilogx(workers, [100 * curve[n].utilisation for n in workers], marker=".", label=name)
    makespan.set(xlabel="workers", ylabel="hours (dotted: longest chain)", title="makespan")
    utilisation.set(xlabel="workers", ylabel="% of the workers' time", title="utilisation", ylim=(0, 105))
    for axes in (makespan, utilisation):
        axes.set_xticks([1, 8, 64, 512], labels=["1", "8", "64", "512"])
        axes.minorticks_off()
    makespan.set_yticks([100, 1000, 10000], labels=["100", "1000", "10000"])
    figure.legend(*makespan.get_legend_handles_labels(), loc="outside lower center", ncols=2, frameon=False)
    return figure


if __name__ == "__main__":
    main()
