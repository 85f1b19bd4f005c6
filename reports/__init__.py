"""Reports: result files in; tables, figures, one HTML page, gates and the published result table out.

`python -m reports` is the command; nothing here measures anything.
"""

import harness  # noqa: F401 - Ctrl-C is one line from here on
