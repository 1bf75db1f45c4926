"""What reports tell of plans that say where ops run: devices, links, memories, placements."""
