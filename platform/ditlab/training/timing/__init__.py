"""Where the time of training goes: phases of all workers, slow workers, utilisation."""
