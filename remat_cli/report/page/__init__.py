"""A report as one page for a browser, which needs no network: values, charts, tables."""
