"""What the machine is, and what disturbs it while a worker measures.

disclosure    the machine, its software and its settings, as a result states them
machine       the counters of the machine at one instant, and what happened between two instants
accelerators  the vendors' watchers, which are plugins, called so that none of them can disturb a run
nvidia        the watcher of NVIDIA's GPUs
sampling      a thread that reads all of these about once a second
canary        a fixed loop that shows how fast one core is now
memory        how much memory there is, and how much can still be allocated
processor, cgroups, files   how Linux tells these things
"""
