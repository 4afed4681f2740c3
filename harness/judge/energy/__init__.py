"""Energy from the meters' raw samples: joules over a window, which of them may be added, and their sum."""
