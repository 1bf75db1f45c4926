"""Loading the tables' kernels ahead of need, so that a caller can say what it waits for."""

from remat_cli.base.present import present
from remat_cli.solvers.chains import rotor_floating, rotor_kernels
from remat_cli.solvers.chains.actions import Chain
from remat_cli.solvers.chains.rotor_slots import make_slots
from remat_cli.solvers.chains.rotor_tables import ALLOWED, build_table

# The kernels that Python calls; all others are compiled into them.
ENTRIES = tuple(getattr(module, name) for module in (rotor_kernels, rotor_floating) for name in ("fill", "choose"))


def warm_up() -> None:
    """Load all kernels from the cache, or compile them into it, once per machine and version."""
    ones = (0, 1, 1)
    chain = Chain(*(ones,) * 8)
    for variant in ALLOWED:
        table = build_table(chain, variant, make_slots(chain, 10, 10, 10), lambda: False)
        present(table, "a table that nothing stops").actions(10)
