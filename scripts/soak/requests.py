"""Makes requests with random parameters."""
from soak.server import ROOT

WORDS = (ROOT / "data/sample/canals.txt").read_text(encoding="utf-8").split()


def words(rng, least, most):
    n, first = rng.randint(least, most), rng.randrange(len(WORDS) - most)
    return " ".join(WORDS[first:first + n])


PERSON = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer", "minimum": 1, "maximum": 99}},
          "required": ["name", "age"], "additionalProperties": False}
WEATHER = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 8}}, "required": ["city"]}
OPENAI_TOOL = {"type": "function", "function": {"name": "weather", "parameters": WEATHER}}


def sampling(rng, seed):
    """Returns random parameters that completions and chats have in common. Each parameter occurs in a part of the
    requests."""
    options = {"max_tokens": rng.randint(1, 24), "temperature": rng.choice([0, 0.8, 1.2]), "seed": seed}
    for name, value in (("top_p", rng.choice([0.5, 0.95])), ("top_k", rng.randint(1, 50)), ("min_p", 0.05), ("stop", [" the", "\n"]),
                        ("presence_penalty", round(rng.uniform(-1, 1.5), 2)), ("frequency_penalty", round(rng.uniform(-1, 1.5), 2)),
                        ("repeat_penalty", 1.1), ("logit_bias", {str(rng.randint(5, 900)): rng.choice([-100, -2, 3])}), ("n", 2)):
        if rng.random() < 0.25:
            options[name] = value
    return options


def form(rng):
    """Returns a grammar, schema or tool choice that a chat must follow, in half of the cases."""
    return rng.choice([{}, {}, {}, {"grammar": 'root ::= ("yes" | "no") [a-z ]*'},
                       {"response_format": {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON}}},
                       {"tools": [OPENAI_TOOL], "tool_choice": rng.choice(["auto", "required", "none"])}])


def random_request(rng, number):
    """Returns an endpoint and a body for it."""
    text = words(rng, 3, 300)
    kind = rng.choice(["chat", "chat", "chat", "completions", "completions", "messages", "responses", "infill", "embeddings"])
    if kind == "chat":
        held = form(rng)
        return "/v1/chat/completions", {"messages": [{"role": "user", "content": text}], **sampling(rng, number), "logprobs": "tools" not in held, **held}
    if kind == "completions":
        return "/v1/completions", {"prompt": text if rng.random() < 0.7 else [text, text[:80]], **sampling(rng, number), "logprobs": 1}
    if kind == "messages":
        held = rng.choice([{}, {"tools": [{"name": "weather", "input_schema": WEATHER}], "tool_choice": {"type": rng.choice(["auto", "any"])}}])
        return "/v1/messages", {"messages": [{"role": "user", "content": text}], "system": "Be short.", "max_tokens": rng.randint(1, 24),
                                "temperature": 0, **held}
    if kind == "responses":
        return "/v1/responses", {"input": text, "max_output_tokens": rng.randint(1, 24), "temperature": 0, "store": False}
    if kind == "infill":
        return "/infill", {"input_prefix": text[:60], "input_suffix": text[60:120], "n_predict": 8, "temperature": 0}
    return "/v1/embeddings", {"input": [text, text[:50]]}
