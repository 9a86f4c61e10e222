"""The settings of a point, by subject: one dataclass of fields a file. `Point` (jobs/point/point.py) is made of all
of them."""
