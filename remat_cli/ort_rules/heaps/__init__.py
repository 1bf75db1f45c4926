"""What lies outside the arena: glibc's heap and its rules, and what kernels take of it."""
