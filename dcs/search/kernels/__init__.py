"""Compiled inner loops of the searches.

All functions release the GIL, write only to arrays allocated for them, and do not modify their
tables. Corrected values are computed by the formula of `dcs.schemes.corrections`, in the same
order of operations, so that ties are broken as in `CorrectionScheme.predict`.
"""
