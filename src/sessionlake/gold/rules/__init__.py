"""Rules over gold's figures: parsing their text and evaluating them on Arrow and numpy arrays. Pure."""
