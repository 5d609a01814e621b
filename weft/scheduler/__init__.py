"""Graph -> kernels -> schedules -> memory plan -> an executable plan."""
