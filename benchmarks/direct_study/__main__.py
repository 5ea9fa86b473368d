"""Why relaxed metrics lose to lambdaloss@10 on simulated data, and what wins.

::

    python benchmarks/direct_study run -o RESULTS --seconds 400     as many runs as fit
    python benchmarks/direct_study show RESULTS                     tables, on a terminal
    python benchmarks/direct_study pack RESULTS -o FILE.jsonl.gz    results in one small file
    python benchmarks/direct_study tiny -o FILE.json                exact minimization
    python benchmarks/direct_study efficiency -o FILE.json          how many lists a loss needs
    python benchmarks/direct_study mq2008 FOLDER                    its losses on MQ2008
    python benchmarks/direct_study speed                            time of a few losses, on a CPU
    python benchmarks/direct_study page RESULTS -o PAGE.md          the page

The page in the documentation, ``docs/results/direct.md``, is made from
``benchmarks/results/direct.jsonl.gz``.

``run`` trains what neither RESULTS nor ``--previous`` has, with or without a GPU. It needs only the
library and its ``train`` extra.

In this folder: ``plan.py`` lists the trainings, ``data.py`` simulates their data, ``candidates.py``
and ``networks.py`` define the losses and networks, ``train.py`` trains one of them while
``diagnose.py`` measures its gradients, and ``pool.py`` trains many side by side. ``show.py``,
``page.py`` and ``figure.py`` present the results; ``tiny.py``, ``efficiency.py`` and ``speed.py``
are experiments of their own.
"""

from __future__ import annotations

import argparse
import functools
import sys
import tempfile
from pathlib import Path

_RESULTS = Path(__file__).parents[1] / "results"


def main() -> None:
    """Parse the command line."""
    args = _parser().parse_args()
    if args.command == "run":
        import plan
        import pool

        for group in args.groups:
            if group not in plan.GROUPS:
                raise SystemExit(f"no group {group!r}; there are {', '.join(plan.GROUPS)}")
        cache = args.cache or Path(tempfile.gettempdir()) / "direct_study"
        pool.run(
            args.output,
            cache,
            previous=args.previous,
            seconds=args.seconds,
            workers=args.workers,
            changes={},
            tasks=functools.partial(plan.tasks, groups=args.groups),
            first=() if args.groups else (plan.MEDIUM, plan.WEB30K, plan.FRESH),
        )
    elif args.command == "tiny":
        import tiny

        tiny.run(args.output)
    elif args.command == "efficiency":
        import efficiency

        efficiency.run(args.output)
    elif args.command == "mq2008":
        import candidates  # noqa: F401 (registers its losses)

        sys.path.append(str(Path(__file__).parents[1]))
        import mq2008

        for loss in args.losses:
            test, vali, _ = mq2008.run(args.folder, loss, args.seeds)
            print(f"{loss}: test {test.mean():.4f}, validation {vali.mean():.4f}", flush=True)
    elif args.command == "speed":
        from speed import measure

        print(measure())
    elif args.command == "pack":
        import pool

        pool.pack(args.results, args.output)
    elif args.command == "page":
        import page

        page.write(args.results, args.tiny, args.efficiency, args.output)
    else:
        from show import show

        print(show(args.results))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="train; goes on with what is there")
    run.add_argument("-o", "--output", type=Path, required=True)
    run.add_argument("--previous", type=Path, action="append", default=[])
    run.add_argument("--cache", type=Path, help="where data are made; a temporary folder")
    run.add_argument("--seconds", type=float, default=400.0)
    run.add_argument("--workers", type=int, default=8)
    run.add_argument("--groups", nargs="+", default=[], help="of plan.py, such as scales; else all")
    show = commands.add_parser("show", help="tables of what there is")
    show.add_argument("results", type=Path, nargs="+")
    solve = commands.add_parser("tiny", help="exact minimization on tiny problems, some minutes")
    solve.add_argument("-o", "--output", type=Path, required=True)
    need = commands.add_parser("efficiency", help="how many lists a loss needs, some minutes")
    need.add_argument("-o", "--output", type=Path, required=True)
    folds = commands.add_parser("mq2008", help="the default with losses of the study, NDCG@5")
    folds.add_argument("folder", help="Fold1 to Fold5 of MQ2008")
    folds.add_argument("--losses", nargs="+", default=["softmax", "level_likelihood(levels=2)"])
    folds.add_argument("--seeds", type=int, default=2)
    commands.add_parser("speed", help="time of a few losses on a CPU")
    for name, text in (("pack", "results in one file"), ("page", "the page of the study")):
        command = commands.add_parser(name, help=text)
        command.add_argument("results", type=Path, nargs="+")
        command.add_argument("-o", "--output", type=Path, required=True)
        if name == "page":
            command.add_argument("--tiny", type=Path, default=_RESULTS / "direct_tiny.json")
            default = _RESULTS / "direct_efficiency.json"
            command.add_argument("--efficiency", type=Path, default=default)
    return parser


if __name__ == "__main__":
    main()
