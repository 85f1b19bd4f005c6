"""DFlash for the rest of the project: the callables that `algorithms.load` gives."""

from algorithms.contract import Algorithm
from algorithms.dflash.config import ENGINE_METHOD, Config
from algorithms.dflash.drafting import propose
from algorithms.dflash.export import aux_layers_of, build, export, restore
from algorithms.dflash.format import FORMAT
from algorithms.dflash.suspects import suspects
from algorithms.dflash.training import objective

ALGORITHM = Algorithm(
    name="dflash",
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
