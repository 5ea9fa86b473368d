"""Which model, loss and recipe the default should be, on simulated data, beside tuned LightGBM.

::

    python benchmarks/default_study run -o RESULTS --seconds 500      as many runs as fit
    python benchmarks/default_study trees -o FILE.jsonl --size medium    LightGBM, on CPUs
    python benchmarks/default_study rules -o FILE.jsonl --size small  the default as users get it
    python benchmarks/default_study together -o FILE.jsonl            trees and a network in one
    python benchmarks/default_study every-feature -o FILE.json        a world where all count
    python benchmarks/default_study shapes -o FILE.jsonl              other lists, other metrics
    python benchmarks/default_study steps                             a step of training, on a CPU
    python benchmarks/default_study show RESULTS                      a table, on a terminal
    python benchmarks/default_study pack RESULTS --trees FILE.jsonl   into benchmarks/results
    python benchmarks/default_study page -o docs/results/simulated.md    the pages

Both go on with what is there. Runs share the machinery of ``benchmarks/direct_study``.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "direct_study"))
_RESULTS = Path(__file__).parents[1] / "results"
#: Functions from the module ``choices`` to one from the results so far to tasks.
_TASKS = {
    "all": lambda choices: choices.tasks,
    "encodings": lambda choices: choices.encoding_tasks,
    "attention": lambda choices: lambda _: list(choices.attention_tasks()),
    "decay": lambda choices: lambda _: list(choices.decay_tasks()),
    "penalty": lambda choices: lambda _: list(choices.penalty_tasks()),
    "few penalty": lambda choices: lambda _: list(choices.few_penalty_tasks()),
    "batches": lambda choices: lambda _: list(choices.batch_tasks()),
    "losses": lambda choices: lambda _: list(choices.loss_tasks()),
    "few losses": lambda choices: lambda _: list(choices.few_loss_tasks()),
    "seeds": lambda choices: lambda _: list(choices.seed_tasks()),
    "ablations": lambda choices: lambda _: list(choices.ablation_tasks()),
    "few ablations": lambda choices: lambda _: list(choices.few_ablation_tasks()),
    "density": lambda choices: lambda _: list(choices.density_tasks()),
    "context": lambda choices: lambda _: list(choices.context_tasks()),
    "evidence": lambda choices: lambda _: list(dict.fromkeys(choices.evidence_tasks())),
    "timed": lambda choices: lambda _: list(choices.timed()),
}


def main() -> None:
    """Parse the command line."""
    args = _parser().parse_args()
    if args.command == "run":
        import choices
        import pool

        pool.run(
            args.output,
            args.cache or Path(tempfile.gettempdir()) / "default_study",
            previous=args.previous,
            seconds=args.seconds,
            workers=args.workers,
            changes={},
            tasks=_TASKS[args.tasks](choices),
            first=(choices.MEDIUM, choices.POINTWISE) if args.tasks == "all" else (),
        )
    elif args.command == "trees":
        import trees

        which = trees.Trees(args.size, args.seed, args.world, args.in_list, args.library)
        trees.run(
            args.output,
            which,
            seconds=args.seconds,
            threads=args.threads,
            previous=args.previous,
            best=args.best,
            again=args.again,
        )
    elif args.command == "rules":
        import rules

        rules.run(args.output, args.size, args.seed, args.world, args.model, args.batch_size)
    elif args.command == "together":
        import trees_and_network

        trees_and_network.run(args.output, args.world, args.threads)
    elif args.command == "every-feature":
        import every_feature

        every_feature.run(args.output, args.threads)
    elif args.command == "shapes":
        import shapes

        planned = shapes.tasks(args.cases or shapes.CASES, args.only, args.queries, args.seeds)
        shapes.run(args.output, planned, args.threads, args.seconds)
    elif args.command == "steps":
        import step_time

        print(step_time.measure())
    elif args.command == "pack":
        import pool
        import results_page

        if args.results:
            pool.pack(args.results, _RESULTS / "default.jsonl.gz")
        for name, files in (("trees", args.trees), ("shapes", args.shapes)):
            if files:
                results_page.pack_lines(files, _RESULTS / f"default_{name}.jsonl.gz")
    elif args.command == "page":
        import results_page
        import shapes_page

        best = _RESULTS / "default_best.json"
        if not best.is_file():
            best.write_text(json.dumps(results_page.best_achievable(), indent=1) + "\n")
        results_page.write(_RESULTS, args.output)
        other = args.output.with_name("other_data.md")
        shapes_page.write(_RESULTS / "default_shapes.jsonl.gz", other)
    else:
        from show import show

        print(show(args.results))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    for name, text in (("run", "train networks"), ("trees", "train LightGBM")):
        command = commands.add_parser(name, help=f"{text}; goes on with what is there")
        command.add_argument("-o", "--output", type=Path, required=True)
        command.add_argument("--previous", type=Path, action="append", default=[])
        command.add_argument("--seconds", type=float, default=500.0)
        if name == "run":
            command.add_argument("--cache", type=Path, help="where data are made")
            command.add_argument("--workers", type=int, default=7)
            command.add_argument("--tasks", choices=tuple(_TASKS), default="all", help="which runs")
        else:
            command.add_argument("--size", default="medium")
            command.add_argument("--seed", type=int, default=0)
            command.add_argument("--world", default="listwise")
            command.add_argument("--in-list", action="store_true")
            command.add_argument("--library", choices=("lightgbm", "xgboost"), default="lightgbm")
            which = command.add_mutually_exclusive_group()
            which.add_argument(
                "--best", type=int, help="only so many points, those best on a part of medium"
            )
            which.add_argument(
                "--again", action="store_true", help="measure what earlier results lack"
            )
            command.add_argument("--threads", type=int, default=8)
    rules = commands.add_parser("rules", help="train the default as users get it, once")
    rules.add_argument("-o", "--output", type=Path, required=True)
    rules.add_argument("--size", default="small")
    rules.add_argument("--seed", type=int, default=0, help="of the queries")
    rules.add_argument("--world", default="listwise")
    rules.add_argument("--model", default="rules")
    rules.add_argument("--batch-size", type=int, help="in place of that of the rules")
    together = commands.add_parser("together", help="the mean of trees and a network; a student")
    together.add_argument("-o", "--output", type=Path, required=True)
    together.add_argument("--world", default="listwise")
    together.add_argument("--threads", type=int, default=2)
    third = commands.add_parser("every-feature", help="a world in which every feature counts")
    third.add_argument("-o", "--output", type=Path, required=True)
    third.add_argument("--threads", type=int, default=2)
    other = commands.add_parser("shapes", help="other lengths of lists, labels and metrics")
    other.add_argument("-o", "--output", type=Path, required=True)
    other.add_argument("--cases", nargs="+", help="of shapes.py, such as binary; else all")
    other.add_argument("--only", nargs="+", default=[], help="losses, or names of shapes.py")
    other.add_argument("--queries", type=int, default=0, help="their seed")
    other.add_argument("--seeds", type=int, nargs="+", default=[0], help="of training")
    other.add_argument("--threads", type=int, default=2)
    other.add_argument("--seconds", type=float, default=7200.0)
    commands.add_parser("steps", help="time of a training step of the defaults, on a CPU")
    pack = commands.add_parser("pack", help="put results into benchmarks/results")
    pack.add_argument("results", type=Path, nargs="*", help="of run, all that are to be kept")
    pack.add_argument("--trees", type=Path, action="append", help="likewise of trees")
    pack.add_argument("--shapes", type=Path, action="append", help="likewise of shapes")
    page = commands.add_parser("page", help="the pages, of benchmarks/results")
    page.add_argument("-o", "--output", type=Path, required=True)
    show = commands.add_parser("show", help="tables of what there is")
    show.add_argument("results", type=Path, nargs="+")
    return parser


if __name__ == "__main__":
    main()
