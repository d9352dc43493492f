"""The styles in which migrated code is written, behind one protocol."""

from npukit.migrate.goal import Goal, Style
from npukit.migrate.styles.npu import Npu
from npukit.migrate.styles.portable import Portable
from npukit.migrate.styles.style import Style as Words

_STYLES: dict[Style, Words] = {Style.portable: Portable(), Style.npu: Npu()}


def style_of(goal: Goal) -> Words:
    """Return the style for a goal.

    >>> style_of(Goal()).device_type(node, file, goal).text
    'NPUKIT_DEVICE_TYPE'
    """
    return _STYLES[goal.style]
