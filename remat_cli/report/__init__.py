"""Reports: values in, text or JSON out."""
