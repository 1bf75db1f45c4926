"""What sessions and processes hold: events, traces, resident memory, caps."""
