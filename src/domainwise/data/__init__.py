"""Data: files -> decoded once, uint8 -> Environments (resident on the device) -> batches [E, B, C, H, W]."""
