"""Training: the one loop, batches of images on the device, losses that several methods use."""
