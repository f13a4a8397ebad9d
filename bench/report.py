"""The Markdown a run ends with: figures per server, ratios to the reference, targets, problems."""

from bench.figures import FAULTS, FIGURES
from bench.measure import Spread
from bench.results import Result, Results
from bench.servers import BASE
from bench.targets import TargetCheck, check_targets

OURS = "millstream"
REFERENCES = (BASE, "reference-file", "reference-memory")


def render(results: Results, machine: dict[str, str], repeat: int) -> str:
    parts = [
        "# Benchmark",
        ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in machine.items()),
        f"Median of {repeat} repeats, smallest and largest in brackets. A ratio above 1 means that "
        f"{OURS} (durable) is better than that server.",
        _figures_table(results),
        "## Targets",
        _targets_table(check_targets(results)),
        *_problems(results),
    ]
    return "\n\n".join(parts) + "\n"


def _table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _figures_table(results: Results) -> str:
    servers = results.servers()
    references = [name for name in REFERENCES if name in servers and OURS in servers]
    head = ["workload", "case", "figure", *servers, *(f"vs {name}" for name in references)]
    rows = []
    for workload, case in results.cases():
        for figure, meaning in FIGURES.items():
            spreads = {name: results.find(workload, case, name, figure) for name in servers}
            if figure in FAULTS or not any(spreads.values()):
                continue
            cells = [_spread_cell(spreads[name]) for name in servers]
            ratios = [_ratio_cell(figure, spreads[OURS], spreads[name]) for name in references]
            rows.append([workload, case, meaning.title, *cells, *ratios])
    return _table(head, rows)


def _spread_cell(spread: Spread | None) -> str:
    if spread is None:
        return "–"
    if spread.min == spread.max:
        return _number(spread.median)
    return f"{_number(spread.median)} ({_number(spread.min)}–{_number(spread.max)})"


def _number(value: float) -> str:
    decimals = 0 if abs(value) >= 100 or value == int(value) else 1 if abs(value) >= 10 else 2
    return f"{value:,.{decimals}f}"


def _ratio_cell(figure: str, ours: Spread | None, theirs: Spread | None) -> str:
    better = FIGURES[figure].better
    if ours is None or theirs is None or better == "neither":
        return "–"
    above, below = (ours, theirs) if better == "higher" else (theirs, ours)
    return f"{_number(above.median / below.median)}x" if below.median else "–"


def _targets_table(checks: list[TargetCheck]) -> str:
    rows = [
        [
            check.target,
            f"{'≥' if check.at_least else '≤'} {_or_dash(check.bound)}",
            _or_dash(check.measured),
            check.verdict,
        ]
        for check in checks
    ]
    return _table(["target", "bound", "measured", ""], rows)


def _or_dash(value: float | None) -> str:
    return "–" if value is None else _number(value)


def _problems(results: Results) -> list[str]:
    lines = [line for result in results.all for line in _problem_lines(result)]
    return ["## Problems", "\n".join(lines)] if lines else []


def _problem_lines(result: Result) -> list[str]:
    where = f"{result.workload}, {result.case}, {result.server}"
    faults = [
        f"{FIGURES[name].title}: up to {_number(value)}" for name, value in result.faults().items()
    ]
    errors = [" ".join(error.split()) for error in result.errors]
    return [f"- {where}: {what}" for what in [*faults, *errors]]
