"""Will it fit, how long will it take, and where does the time go: plan, tune, profile and advise."""
