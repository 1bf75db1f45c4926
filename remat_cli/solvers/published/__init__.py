"""The systems of papers and the classics, each as published: one file per solver, its helpers in folders by subject."""
