"""DFlash2 for the rest of the project: the callables that `algorithms.load` gives."""

from algorithms.contract import Algorithm
from algorithms.dflash.export import aux_layers_of
from algorithms.dflash.suspects import suspects
from algorithms.dflash2.config import ENGINE_METHOD, Config
from algorithms.dflash2.drafting import propose
from algorithms.dflash2.export import build, export, restore
from algorithms.dflash2.format import FORMAT
from algorithms.dflash2.training import objective

ALGORITHM = Algorithm(
    name="dflash2",
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
    new_tensors=(".attention_conv.", ".mlp_conv.", "candidate_selector."),
)
