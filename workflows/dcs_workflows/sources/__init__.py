"""Sources of the class probabilities that cells are tuned on: given files, or scored prompts."""
