"""How long `rotor`'s tables take: `python -m bench.rotor`, on one core, kernels compiled before.

Chains are random (seeded), and the largest budget is half of what keeping all takes, in slots of equal size.
"""

from __future__ import annotations

import random
import time

import click
import msgspec

from bench.compiling import RESULTS, table_lines
from remat_cli.solvers.chains.actions import Chain
from remat_cli.solvers.chains.rotor_slots import make_slots
from remat_cli.solvers.chains.rotor_tables import Variant, build_table
from remat_cli.solvers.chains.rotor_warmup import warm_up

CASES: tuple[tuple[int, Variant], ...] = (
    (100, "persistent"),
    (100, "drop"),
    (50, "floating"),
    (100, "floating"),
    (340, "persistent"),
    (340, "drop"),
)


def random_chain(stages: int, seed: int) -> Chain:
    """Times and sizes in the ranges of networks' blocks."""
    rng = random.Random(seed)
    values = [rng.randint(1, 2**24) for _ in range(stages + 1)]
    forward, backward, extra = ([0, *(rng.randint(1, 10**6) for _ in range(stages))] for _ in range(3))
    saved = [0, *(value + rng.randint(0, 2**25) for value in values[1:])]
    return Chain(*map(tuple, (forward, backward, values, saved, values, extra, extra, extra)))


@click.command()
@click.option("--slots", default=500, help="Parts of the budget.")
def main(slots: int) -> None:
    """Print the table, and write `bench/results/rotor.jsonl`, which the bench of classic systems shows."""
    warm_up()
    rows = []
    for stages, variant in CASES:
        chain = random_chain(stages, seed=0)
        budget = chain.keep_all()[1] // 2
        started = time.perf_counter()
        table = build_table(chain, variant, make_slots(chain, budget, budget, slots), lambda: False)
        seconds = time.perf_counter() - started
        assert table is not None  # nothing stops it
        row = {"stages": stages, "slots": table.slots.most, "variant": variant, "seconds": round(seconds, 3)}
        rows.append({**row, "table MiB": table.times.nbytes >> 20})
    (RESULTS / "rotor.jsonl").write_bytes(b"".join(msgspec.json.encode(row) + b"\n" for row in rows))
    click.echo("\n".join(table_lines(list(rows[0]), [[str(figure) for figure in row.values()] for row in rows])))


if __name__ == "__main__":
    main()
