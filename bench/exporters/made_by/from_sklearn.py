"""scikit-learn's pipelines by skl2onnx, boosted trees by onnxmltools and by CatBoost itself."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import catboost
import lightgbm
import numpy as np
import onnx
import onnxmltools
import xgboost
from onnxmltools.convert.common.data_types import FloatTensorType as Floats
from skl2onnx import to_onnx
from skl2onnx.common.data_types import FloatTensorType, StringTensorType
from sklearn.cluster import KMeans
from sklearn.compose import ColumnTransformer
from sklearn.datasets import make_classification
from sklearn.decomposition import PCA
from sklearn.ensemble import GradientBoostingRegressor, RandomForestClassifier
from sklearn.feature_extraction.text import CountVectorizer, TfidfVectorizer
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import Normalizer, OneHotEncoder, PolynomialFeatures, StandardScaler
from sklearn.svm import SVC

from bench.drawn.drawn import Feed, Range
from bench.exporters.recipe import Recipe, Write, export

ROWS = {"x": Feed(("rows", 12))}
MANY = {"rows": Range(1, 512)}
TEXTS = np.array(["red apple", "green pear and plum", "blue sky", "an apple a day", "sky of red", "plum pear"] * 10)
COLOURS = np.array([["red"], ["green"], ["blue"]] * 20)
X, CLASSES = make_classification(300, 12, n_informative=8, random_state=0)
X = X.astype(np.float32)
NUMBERS = (X[:, 0] + X[:, 1] ** 2).astype(np.float32)


def fitted(model: Any, target: Any, opset: int, **options: Any) -> Write:
    """A model that was fitted to rows of numbers."""

    def write(path: Path) -> object:
        found = to_onnx(model.fit(X, target), X[:1], target_opset=opset, options=options or None)
        return path.write_bytes(found.SerializeToString())

    return write


def fitted_to_text(opset: int, vectorizer: Any) -> Write:
    """A model that was fitted to lines of text."""

    def write(path: Path) -> object:
        model = make_pipeline(vectorizer, LogisticRegression()).fit(TEXTS, np.arange(len(TEXTS)) % 3)
        kinds = [("x", StringTensorType([None]))]
        options = {id(model): {"zipmap": False}, id(model[0]): {"locale": "C"}}  # of all machines
        found = to_onnx(model, initial_types=kinds, target_opset=opset, options=options)
        return path.write_bytes(found.SerializeToString())

    return write


def fitted_to_columns(path: Path) -> object:
    """Columns of text and of numbers, each with an input."""
    import pandas as pd

    frame = pd.DataFrame({"colour": COLOURS[:, 0], "size": X[:60, 0], "weight": X[:60, 1]})
    columns = [
        ("words", OneHotEncoder(handle_unknown="ignore"), ["colour"]),
        ("numbers", StandardScaler(), ["size", "weight"]),
    ]
    model = make_pipeline(ColumnTransformer(columns), LogisticRegression()).fit(frame, CLASSES[:60])
    kinds = [
        ("colour", StringTensorType([None, 1])),
        ("size", FloatTensorType([None, 1])),
        ("weight", FloatTensorType([None, 1])),
    ]
    return path.write_bytes(to_onnx(model, initial_types=kinds, target_opset=17).SerializeToString())


def boosted(convert: Callable[..., Any], model: Any, target: Any, opset: int) -> Write:
    """Trees of another package, by its converter of onnxmltools."""

    def write(path: Path) -> object:
        kinds = [("x", Floats(["N", 12]))]
        return onnx.save(convert(model.fit(X, target), initial_types=kinds, target_opset=opset), str(path))

    return write


def catboosted(path: Path) -> object:
    """Trees that CatBoost writes itself."""
    model = catboost.CatBoostClassifier(iterations=40, depth=4, verbose=False, allow_writing_files=False).fit(
        X, CLASSES
    )
    return model.save_model(str(path), format="onnx")


def recipes() -> list[Recipe]:
    """What this environment writes."""
    skl, tools, plain = "skl2onnx", "onnxmltools", {"zipmap": False}
    mlp = make_pipeline(StandardScaler(), MLPClassifier((64, 64), max_iter=20, random_state=0))
    poly = make_pipeline(
        PolynomialFeatures(2), StandardScaler(), MLPRegressor(hidden_layer_sizes=(64,), max_iter=20, random_state=0)
    )
    forest = make_pipeline(Normalizer(), RandomForestClassifier(20, max_depth=5, random_state=0))
    pca = make_pipeline(PCA(6), LogisticRegression())
    process = GaussianProcessRegressor()
    text, columns = {"x": Feed(("rows",), "text", np.str_)}, Feed(("rows", 1), "text", np.str_)
    mixed = {"colour": columns, "size": Feed(("rows", 1)), "weight": Feed(("rows", 1))}
    boosters = lightgbm.LGBMRegressor(n_estimators=30, verbose=-1), xgboost.XGBClassifier(n_estimators=30)
    return [
        Recipe("skl_mlp_12", skl, "scaler, MLP", ROWS, MANY, fitted(mlp, CLASSES, 12, **plain)),
        Recipe("skl_poly_15", skl, "polynomial features, MLP", ROWS, MANY, fitted(poly, NUMBERS, 15)),
        Recipe("skl_forest_11", skl, "random forest", ROWS, MANY, fitted(forest, CLASSES, 11, **plain)),
        Recipe(
            "skl_gbr_13",
            skl,
            "boosted trees",
            ROWS,
            MANY,
            fitted(GradientBoostingRegressor(n_estimators=30), NUMBERS, 13),
        ),
        Recipe(
            "skl_knn_13", skl, "nearest neighbours", ROWS, MANY, fitted(KNeighborsClassifier(), CLASSES, 13, **plain)
        ),
        Recipe("skl_gpr_12", skl, "Gaussian process", ROWS, MANY, fitted(process, NUMBERS, 12)),
        Recipe("skl_kmeans_14", skl, "k-means", ROWS, MANY, fitted(KMeans(8, random_state=0), None, 14)),
        Recipe("skl_svc_11", skl, "support vectors", ROWS, MANY, fitted(SVC(), CLASSES, 11, **plain)),
        Recipe("skl_pca_18", skl, "PCA, logistic regression, ZipMap", ROWS, MANY, fitted(pca, CLASSES, 18)),
        Recipe("skl_tfidf_15", skl, "text, tf-idf", text, MANY, fitted_to_text(15, TfidfVectorizer())),
        Recipe(
            "skl_ngrams_16", skl, "text, n-grams", text, MANY, fitted_to_text(16, CountVectorizer(ngram_range=(1, 2)))
        ),
        Recipe("skl_columns_17", skl, "columns of text and numbers, ZipMap", mixed, MANY, fitted_to_columns),
        Recipe(
            "lgbm_12", tools, "LightGBM", ROWS, MANY, boosted(onnxmltools.convert_lightgbm, boosters[0], NUMBERS, 12)
        ),
        Recipe("xgb_13", tools, "XGBoost", ROWS, MANY, boosted(onnxmltools.convert_xgboost, boosters[1], CLASSES, 13)),
        Recipe("catboost", "catboost", "CatBoost's own, ZipMap", ROWS, MANY, catboosted),
    ]


if __name__ == "__main__":
    export(recipes())
