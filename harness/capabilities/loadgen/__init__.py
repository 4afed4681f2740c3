"""The routes of a run measured once more with MLCommons' LoadGen as the clock. No figure here is an MLPerf result."""
