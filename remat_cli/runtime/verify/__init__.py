"""Both models beside each other: bits, order, memory, time."""
