"""What pages: its plan, its places, its judge."""
