"""Integer programs as plain data, and the engines that solve them: CP-SAT, and HiGHS or SCIP in a process."""
