"""EAGLE-3 for the rest of the project: the callables that `algorithms.load` gives."""

from algorithms.contract import Algorithm
from algorithms.eagle3.config import ENGINE_METHOD, Config
from algorithms.eagle3.drafting import propose
from algorithms.eagle3.export import aux_layers_of, build, export, restore
from algorithms.eagle3.format import FORMAT
from algorithms.eagle3.suspects import suspects
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
    engine_method=ENGINE_METHOD,
    format=FORMAT,
    suspects=suspects,
)
