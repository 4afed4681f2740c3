"""The drill: the mix once more, while its busiest device that others can replace is taken away and given back."""
