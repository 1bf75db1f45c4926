"""The parts of Moccasin's model: retention intervals, their clock, units and hints."""
