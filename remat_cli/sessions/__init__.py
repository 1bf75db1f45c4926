"""Plans for several devices: ops are placed, the plan is cut into sessions, and remat runs these."""
