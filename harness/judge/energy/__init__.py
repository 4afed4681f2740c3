"""Energy from the meters' raw samples: joules over a window, and which of them may be added."""
