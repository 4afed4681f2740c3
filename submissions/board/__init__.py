"""A leaderboard as a folder of static pages: who shares which rank, and how that is shown."""
