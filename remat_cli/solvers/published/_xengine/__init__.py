"""The parts of XEngine's program: layout, rows and schedules of stages on several devices."""
