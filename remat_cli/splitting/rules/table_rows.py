"""Slicing rules of ops of classic models on rows of features: scalers, norms, counts of words, trees.

Measured with ONNX Runtime 1.32.0: 1, 2 and 4 threads, 1 to 300 trees. Scalers treat each number by itself, norms each
row. Votes of trees are added up one after the other for up to fifty rows (48 differed from 1,000), and for more rows in
groups of trees, one for each thread, the same ones for 51 rows as for any more.
"""

from remat_cli.splitting.tiles.op_view import OpView, Slab, Sliced, of_first

LEAST_ROWS = 64
"""From so many rows on trees are added up in the same groups, however many rows there are."""


def rows(op: OpView, slab: Slab) -> Sliced | None:
    """Scaler, Normalizer, Binarizer, Imputer: rows by themselves."""
    return None if slab.axis else of_first(op, slab, slab)


def counted(op: OpView, slab: Slab) -> Sliced | None:
    """TfIdfVectorizer: lines of words by themselves, where there are several; the words of one line are not cut."""
    return rows(op, slab) if len(op.input_shape(0)) == len(op.output_shape) == 2 else None


def trees(op: OpView, slab: Slab) -> Sliced | None:
    """Ensembles of trees: rows by themselves, where part and whole are both so long that votes are added up alike."""
    whole = op.output_shape[0]
    is_alike = op.may_reassociate or slab.extent == whole or min(slab.extent, whole) >= LEAST_ROWS
    return rows(op, slab) if is_alike else None
