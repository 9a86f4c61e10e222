"""Switches applied in this process; the fixture `undone` takes them back."""

from types import SimpleNamespace

from nightsweep.jobs.hook import switches
from nightsweep.jobs.point.settings.command import SWITCHES

NOTHING = dict.fromkeys((*SWITCHES, "no_sync"))


def switched(**settings):
    watch = SimpleNamespace(seed=0, notes=[], current=object(), once_known=[], in_backward=lambda: False)
    switches.apply(watch, NOTHING | settings)
    return watch
