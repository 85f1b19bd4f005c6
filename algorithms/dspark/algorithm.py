"""DSpark for the rest of the project: the callables that `algorithms.load` gives."""

from algorithms.contract import Algorithm
from algorithms.dflash.export import aux_layers_of
from algorithms.dspark.config import ENGINE_METHOD, Config
from algorithms.dspark.drafting import propose
from algorithms.dspark.export import build, export, restore
from algorithms.dspark.format import FORMAT
from algorithms.dspark.suspects import suspects
from algorithms.dspark.training import objective

ALGORITHM = Algorithm(
    name="dspark",
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
    new_tensors=("markov_head.", "confidence_head."),
)
