"""P-EAGLE for the rest of the project: the callables that `algorithms.load` gives."""

from algorithms.contract import Algorithm
from algorithms.eagle3.export import aux_layers_of
from algorithms.peagle.config import ENGINE_METHOD, Config
from algorithms.peagle.drafting import propose
from algorithms.peagle.export import build, export, restore
from algorithms.peagle.format import FORMAT
from algorithms.peagle.suspects import suspects
from algorithms.peagle.training import objective

ALGORITHM = Algorithm(
    name="peagle",
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
    new_tensors=("mask_hidden", "embed_tokens."),
)
