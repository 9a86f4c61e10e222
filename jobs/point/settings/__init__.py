"""The settings of a point, by subject: one dataclass of fields a file. `jobs.point.point.Point` is made of all of
them."""
