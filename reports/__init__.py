"""Reports: result files in; tables, figures, one HTML page, gates and the published result table out.

`python -m reports` is the command; nothing here measures anything.
"""
