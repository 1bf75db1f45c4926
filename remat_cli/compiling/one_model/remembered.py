"""What verification showed of the original, which depends on nothing that a plan changes: kept for later ones."""

from remat_cli.compiling.facts import known_facts_of, remember_facts
from remat_cli.compiling.prepare import Prepared, process_key
from remat_cli.core.values.conditions import Conditions
from remat_cli.core.values.resident import ProcessMemory
from remat_cli.core.values.verification import OneModelSeen


def remember_cap(prepared: Prepared, verification: OneModelSeen, conditions: Conditions) -> None:
    """Keep the original's smallest cap, which takes long to find and depends on nothing that a plan changes."""
    found = verification.original_smallest_cap_bytes
    if found is not None and verification.cap_options == "default" and prepared.facts.smallest_cap_bytes is None:
        remember_facts(prepared.reference_sha256, conditions, smallest_cap_bytes=found)


def known_process(prepared: Prepared) -> ProcessMemory | None:
    """What processes were seen to hold that load and run the user's file as it is asked for now; None: not seen yet."""
    facts = known_facts_of(prepared.reference_sha256, prepared.conditions)
    return None if facts is None else facts.processes.get(_key_of(prepared))


def remember_process(prepared: Prepared, verification: OneModelSeen, conditions: Conditions) -> None:
    """Keep what a process of the user's file holds, which depends on nothing that a plan changes."""
    seen = verification.process
    if seen and seen.original is not None and known_process(prepared) is None and prepared.runnable is None:
        facts = known_facts_of(prepared.reference_sha256, conditions)
        known = {} if facts is None else facts.processes
        processes = {**known, _key_of(prepared): seen.original}
        remember_facts(prepared.reference_sha256, conditions, processes=processes)


def _key_of(prepared: Prepared) -> str:
    return process_key(prepared.original, prepared.source, prepared.conditions)
