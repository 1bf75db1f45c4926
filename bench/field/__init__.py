"""The field bench: trained models that packages ship, compiled and put back into the programs that they belong to."""
