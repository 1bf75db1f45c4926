"""What a user can set, resolved once."""
