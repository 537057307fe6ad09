"""One run without a notebook, also on several processes: `accelerate launch --multi_gpu -m cirkit.train seed=1`.

The parameters are those of notebook 07 (`cirkit.run_parameters.RunParameters`), written as name=value. The record is
that of the notebook, and a run that is already there is loaded. In one process: `python -m cirkit.train seed=1`; on the
CPU, `torchrun --nproc_per_node 2 -m cirkit.train seed=1 device=cpu`.
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import difflib
import os
import sys
from collections.abc import Sequence
from typing import Any


def main(arguments: Sequence[str] | None = None) -> int:
    """Train, or load, the run with these parameters; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m cirkit.train", description=__doc__)
    parser.add_argument("parameters", nargs="*", metavar="name=value", help="method=rcl noise_rate=0.5 ...")
    parser.add_argument("--result", metavar="FILE", default="", help="where a copy of the record goes when all is done")
    parser.add_argument("--quiet", action="store_true", help="no progress bars")
    options = parser.parse_args(arguments)
    # imported here so that --help answers at once
    from cirkit.parallel import ReplicaError, is_main, main_only, processes, stop
    from cirkit.paths import check_target, resolve
    from cirkit.records import load_metrics
    from cirkit.runs import train_or_load

    try:
        if options.result:
            check_target(resolve(options.result), "--result")
        run = train_or_load(progress=not options.quiet, **read_parameters(options.parameters))
        if options.result:
            main_only(lambda: run.copy_record(resolve(options.result)))
    except (ValueError, OSError, ReplicaError) as error:
        who = "" if is_main() else f" (process {os.environ.get('RANK')})"
        print(f"cirkit{who}: {error}", file=sys.stderr, flush=True)
        return 1
    if is_main():
        record = load_metrics(run.folder)
        headline = (record["report_on"], "R@1", "mean")
        found = [m for m in record["metrics"] if (m["split"], m["metric"], m["category"]) == headline]
        done = f"{run.id}, {processes()} process{'es' * (processes() > 1)}"
        print(f"{done}: {record['report_on']} R@1 {found[0]['value']:.1f}; the record is in {run.folder}")
    stop()
    return 0


def read_parameters(words: Sequence[str]) -> dict[str, Any]:
    """``["noise_rate=0.5", "METHOD=rcl"]`` as parameters of a run, typed as they are there.

    Raises:
        ValueError: a word without ``=``, an unknown name or one given twice, or a value that cannot be read.
    """
    from cirkit.run_parameters import RunParameters

    types = {f.name: f.type for f in dataclasses.fields(RunParameters)}
    values: dict[str, Any] = {}
    for word in words:
        name, given, text = word.partition("=")
        name = name.lower()
        if not given:
            raise ValueError(f"{word!r} is no parameter: write name=value, such as noise_rate=0.5")
        if name not in types:
            close = difflib.get_close_matches(name, types, 1)
            hint = f" (did you mean {close[0]!r}?)" if close else ""
            raise ValueError(f"there is no parameter {name!r}{hint}; the parameters: {', '.join(types)}")
        if name in values:
            raise ValueError(f"{name} is given twice")
        try:
            values[name] = text if types[name] == "str" else ast.literal_eval(text)
        except (ValueError, SyntaxError):
            raise ValueError(f"{name} must be {types[name]}, got {text!r}") from None
    return values


if __name__ == "__main__":
    sys.exit(main())
