"""The inference engine: continuous batching over a paged cache, for the language models of transformers.

    engine = Engine(model, EngineOptions(max_model_len=4096))
    answers = engine.generate([Request((1, 2, 3), SamplingParams(temperature=0, max_tokens=8))])

or step by step, which is what a server does (see npukit.inference.service):

    request_id = engine.add_request(request)
    while not engine.is_idle:
        for output in engine.step(): ...        # of the request Output.request_id
    engine.abort_request(request_id)

    engine.load_adapter("name", Path("lora"))   # then Request(adapter="name")
    engine.stats()

An engine belongs to one thread. `add_request` raises NpukitError for a request that cannot be computed: too long, with
an unknown adapter, or with a token that the model does not have.
"""

from npukit.inference.engine.engine import Engine as Engine
from npukit.inference.engine.request import Output as Output
from npukit.inference.engine.request import Request as Request
from npukit.inference.engine.request import RequestOutput as RequestOutput
from npukit.inference.engine.request import SamplingParams as SamplingParams
from npukit.inference.engine.request import Stats as Stats
from npukit.inference.engine.request import Token as Token
from npukit.llm.config.use import EngineOptions as EngineOptions
