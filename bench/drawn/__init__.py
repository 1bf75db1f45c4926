"""Random models with open sizes, as torch and older exporters write them, compiled for ranges and run at many sizes."""
