"""Plans that are one model in one session: how they are made, written, verified, mended and told of."""
