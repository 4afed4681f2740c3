"""Power caps: the mix once more with lower power limits of the devices."""
