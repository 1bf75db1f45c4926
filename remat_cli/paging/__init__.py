"""Plans that page: values and weights wait in a larger memory, and sessions read them in their turn."""
