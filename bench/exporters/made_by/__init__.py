"""Programs that export models, one for each environment of `bench/exporters/environments`."""
