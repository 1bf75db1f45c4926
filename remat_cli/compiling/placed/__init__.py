"""What plans share that say where ops run: cut into sessions, recorded, made a program, and verified."""
