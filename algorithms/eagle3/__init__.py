"""EAGLE-3: a one-layer draft that reads three verifier states and feeds its own state back. See README.md."""

from algorithms.contract import Algorithm
from algorithms.eagle3.config import Config
from algorithms.eagle3.drafting import propose
from algorithms.eagle3.export import aux_layers_of, build, export, restore
from algorithms.eagle3.format import FORMAT
from algorithms.eagle3.training import objective

ALGORITHM = Algorithm(
    name="eagle3",
    Config=Config,
    build=build,
    objective=objective,
    propose=propose,
    export=export,
    restore=restore,
    aux_layers=aux_layers_of,
    engine_method="eagle3",
    format=FORMAT,
)
