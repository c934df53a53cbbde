"""The rules of the static check, which reads a submission and never runs it.

`_code` says what names stand for and what `forward` reaches, `_fold` what an expression's value is;
each of the other modules holds some rules: functions of a `Code` that yield what they find.
"""
