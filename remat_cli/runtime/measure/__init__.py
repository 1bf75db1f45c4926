"""What ops, copies and models cost: times, noise, and the cache of them."""
