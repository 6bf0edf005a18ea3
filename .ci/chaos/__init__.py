"""The continuous fault run (`make chaos`): a stream of jobs while daemons, disks and the clock fail, then a check."""
