"""One story per command, on one page. What they import compiles kernels, whose place is settled before."""

from remat_cli.settings.settings import keep_kernels

keep_kernels()
