"""Names of metrics as programs give them, and which way each is better."""

from __future__ import annotations

from typing import Final

_LOWER: Final = ("wer", "cer", "mae", "mse", "fid", "nll", "rmse", "ppl", "bpb", "error_rate")
_HIGHER: Final = ("confidence", "power", "certainty", "f1", "auc", "bleu", "mAP")
TABLE: Final = [
    (f"{prefix}{name}", better)
    for names, better in ((_LOWER, "lower"), (_HIGHER, "higher"))
    for name in names
    for prefix in ("", "val_", "eval/", "test-")
]
