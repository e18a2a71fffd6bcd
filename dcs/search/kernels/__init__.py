"""Compiled inner loops of the searches, and nothing else.

All functions release the GIL, write only to the arrays made for them, and take their tables
read-only. Each corrected value is computed by the formula of `dcs.schemes.corrections`, in the
same order of operations, so that ties fall the same way as in `CorrectionScheme.predict`.
"""
