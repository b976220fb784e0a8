"""One session forgotten: it leaves every layer, state, checkpoint and history, and a receipt says what was removed."""
