"""The rules of the game: seeds, splits, hyper-parameter spaces, model selection."""
