#!/usr/bin/env python3
"""client-matrix.py URL [--key KEY] [--json]: prints a table of what client packages get from a server.

scripts/client-packages.txt lists the packages, and `scripts/setup.sh test` installs them into .venv. The server's chat
template must support tools, and thoughts that a request can switch on. A cell is `yes`, `refused` with the server's
sentence, or `no` with what was wrong. A cell is empty if the package cannot ask for the feature. Whatever went wrong is
printed in full on stderr. --json prints the cells as JSON. The server may be any server with OpenAI's and Anthropic's
APIs, for example llama-server.

    chat      a completion with a system message, and its numbers of tokens
    stream    the same completion in parts
    tools     a call that the request demands, and the completion after the tool's result
    schema    a completion that follows a JSON schema
    thoughts  thoughts that are separate from the text
    errors    the package's own class of error for a wrong value, a wrong key and an unknown model
    continue  a completion that continues text from the request
"""
import argparse
import json
import os
import sys

# Without LITELLM_LOCAL_MODEL_COST_MAP, the package downloads prices.
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

LONGEST = 100  # characters of a cell
FEATURES = ("chat", "stream", "tools", "schema", "thoughts", "errors", "continue")
SYSTEM, QUESTION = {"role": "system", "content": "Be brief."}, {"role": "user", "content": "Name three colours."}
BEGUN = {"role": "assistant", "content": "The three colours are red,"}
CITY = {"type": "object", "properties": {"city": {"enum": ["Ghent", "Oslo"]}}, "required": ["city"], "additionalProperties": False}
WEATHER = {"name": "weather", "description": "The weather of a city.", "parameters": CITY}
ASK_WEATHER = {"role": "user", "content": "How is the weather in Ghent?"}


def check_city(value, said):
    """Checks an object against CITY. `value` is the object or its text."""
    try:
        value = json.loads(value) if isinstance(value, str) else value
    except json.JSONDecodeError:
        value = None
    check(value in ({"city": "Ghent"}, {"city": "Oslo"}), "not as the schema says", said)


class Unmet(AssertionError):
    """Reports a response that is not what was requested. `what` gives the reason in words for a cell."""

    def __init__(self, what, said):
        super().__init__(f"{what}: {said!r}")
        self.what = what


def check(condition, what, said=""):
    if not condition:
        raise Unmet(what, said)


def check_begun(text):
    check(text, "no text", text)
    check(not text.lstrip().startswith("The three"), "the beginning comes once more", text)


def check_refused(*asked):
    """Checks that requests fail. `asked` holds triples: what is wrong, the error that the package should raise, and the
    request."""
    taken = []
    for what, error, ask in asked:
        try:
            ask()
        except error:
            continue
        taken.append(what)
    check(not taken, f"{' and '.join(taken)} accepted", taken)


class OpenaiChat:
    name = "openai, chat"

    def __init__(self, url, key, model):
        import openai
        self.errors, self.url, self.key, self.model = openai, url, key, model
        self.client = self.connect(key)

    def connect(self, key):
        return self.errors.OpenAI(base_url=self.url + "/v1", api_key=key, max_retries=0, timeout=300)

    def ask(self, *messages, client=None, **options):
        options = {"model": self.model, "messages": list(messages), "max_tokens": 12, "temperature": 0, **options}
        return (client or self.client).chat.completions.create(**options)

    def chat(self):
        completion = self.ask(SYSTEM, QUESTION)
        check(completion.choices[0].message.content, "no text", completion)
        check(completion.usage.completion_tokens > 0, "no tokens counted", completion)

    def stream(self):
        text = "".join(c.choices[0].delta.content or "" for c in self.ask(SYSTEM, QUESTION, stream=True) if c.choices)
        check(text == self.ask(SYSTEM, QUESTION).choices[0].message.content, "a different text than without a stream", text)

    def tools(self):
        tools = [{"type": "function", "function": WEATHER}]
        message = self.ask(ASK_WEATHER, tools=tools, tool_choice="required", parallel_tool_calls=False, max_tokens=80).choices[0].message
        check(message.tool_calls, "no call", message)
        check_city(message.tool_calls[0].function.arguments, message)
        result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "sunny"}
        check(self.ask(ASK_WEATHER, message, result, tools=tools, tool_choice="none").choices[0].message.content, "no text after the result")

    def schema(self):
        wanted = {"type": "json_schema", "json_schema": {"name": "city", "strict": True, "schema": CITY}}
        text = self.ask(QUESTION, response_format=wanted, max_tokens=40).choices[0].message.content
        check_city(text, text)

    def thoughts(self):
        message = self.ask(QUESTION, reasoning_effort="high").choices[0].message
        check(getattr(message, "reasoning_content", None) and not message.content, "no thoughts apart", message)

    def errors_(self):
        check_refused(("temperature -1", self.errors.BadRequestError, lambda: self.ask(QUESTION, temperature=-1)),
                      ("a wrong key", self.errors.AuthenticationError, lambda: self.ask(QUESTION, client=self.connect("wrong"))),
                      ("an unknown model", self.errors.NotFoundError, lambda: self.ask(QUESTION, model="nobody/nothing")))

    def continue_(self):
        text = self.ask(QUESTION, BEGUN).choices[0].message.content
        check_begun(text)


class OpenaiResponses(OpenaiChat):
    name = "openai, responses"

    def ask(self, *items, client=None, **options):
        options = {"model": self.model, "input": list(items), "max_output_tokens": 12, "temperature": 0, "store": False, **options}
        return (client or self.client).responses.create(**options)

    def chat(self):
        response = self.ask(QUESTION, instructions="Be brief.")
        check(response.output_text and response.usage.output_tokens > 0, "no text", response)

    def stream(self):
        text = "".join(e.delta for e in self.ask(QUESTION, stream=True) if e.type == "response.output_text.delta")
        check(text == self.ask(QUESTION).output_text, "a different text than without a stream", text)

    def tools(self):
        tools = [{"type": "function", "strict": False, **WEATHER}]
        response = self.ask(ASK_WEATHER, tools=tools, tool_choice="required", parallel_tool_calls=False, max_output_tokens=80)
        call = response.output[-1]
        check(call.type == "function_call", "no call", response)
        check_city(call.arguments, response)
        result = {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}
        check(self.ask(ASK_WEATHER, *response.output, result, tools=tools, tool_choice="none").output_text, "no text after the result")

    def schema(self):
        wanted = {"format": {"type": "json_schema", "name": "city", "strict": True, "schema": CITY}}
        text = self.ask(QUESTION, text=wanted, max_output_tokens=40).output_text
        check_city(text, text)

    def thoughts(self):
        item = self.ask(QUESTION, reasoning={"effort": "high"}).output[0]
        check(item.type == "reasoning" and item.content[0].text, "no thoughts apart", item)

    def continue_(self):
        text = self.ask(QUESTION, BEGUN).output_text
        check_begun(text)


class Anthropic:
    name = "anthropic"

    def __init__(self, url, key, model):
        import anthropic
        self.errors, self.url, self.model = anthropic, url, model
        self.client = self.connect(key)

    def connect(self, key):
        return self.errors.Anthropic(base_url=self.url, api_key=key, max_retries=0, timeout=300)

    def ask(self, *messages, client=None, **options):
        options = {"model": self.model, "messages": list(messages), "max_tokens": 12, "extra_body": {"temperature": 0}, **options}
        return (client or self.client).messages.create(**options)

    def chat(self):
        message = self.ask(QUESTION, system="Be brief.")
        check(message.content[0].text and message.usage.output_tokens > 0, "no text", message)

    def stream(self):
        wanted = {"model": self.model, "messages": [QUESTION], "max_tokens": 12, "extra_body": {"temperature": 0}}
        with self.client.messages.stream(**wanted) as stream:
            text = "".join(stream.text_stream)
        check(text == self.ask(QUESTION).content[0].text, "a different text than without a stream", text)

    def tools(self):
        tools = [{"name": "weather", "description": "The weather of a city.", "input_schema": CITY}]
        choice = {"type": "tool", "name": "weather", "disable_parallel_tool_use": True}
        message = self.ask(ASK_WEATHER, tools=tools, tool_choice=choice, max_tokens=80)
        use = message.content[-1]
        check(use.type == "tool_use", "no call", message)
        check_city(use.input, message)
        turns = ASK_WEATHER, {"role": "assistant", "content": message.content}, {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": use.id, "content": "sunny"}]}
        check(self.ask(*turns, tools=tools, tool_choice={"type": "none"}).content[0].text, "no text after the result")

    def schema(self):
        text = self.ask(QUESTION, output_config={"format": {"type": "json_schema", "schema": CITY}}, max_tokens=40).content[0].text
        check_city(text, text)

    def thoughts(self):
        block = self.ask(QUESTION, thinking={"type": "enabled", "budget_tokens": 1024}).content[0]
        check(block.type == "thinking" and block.thinking, "no thoughts apart", block)

    def errors_(self):
        check_refused(("top_p -1", self.errors.BadRequestError, lambda: self.ask(QUESTION, extra_body={"top_p": -1})),
                      ("a wrong key", self.errors.AuthenticationError, lambda: self.ask(QUESTION, client=self.connect("wrong"))),
                      ("an unknown model", self.errors.NotFoundError, lambda: self.ask(QUESTION, model="nobody/nothing")))

    def continue_(self):
        text = self.ask(QUESTION, BEGUN).content[0].text
        check_begun(text)


class Litellm(OpenaiChat):
    name = "litellm"

    def __init__(self, url, key, model):
        import litellm
        litellm.suppress_debug_info = True
        self.litellm, self.errors, self.url, self.key, self.model = litellm, litellm.exceptions, url, key, model

    def connect(self, key):
        return key

    def ask(self, *messages, client=None, model=None, **options):
        options = {"messages": list(messages), "max_tokens": 12, "temperature": 0, **options}
        return self.litellm.completion(model=f"openai/{model or self.model}", api_base=self.url + "/v1", api_key=client or self.key,
                                       max_retries=0, **options)

    def thoughts(self):
        message = self.ask(QUESTION, extra_body={"reasoning_effort": "high"}).choices[0].message
        check(getattr(message, "reasoning_content", None) and not message.content, "no thoughts apart", message)


class Langchain(OpenaiChat):
    name = "langchain-openai"

    def __init__(self, url, key, model):
        import langchain_openai
        import openai
        self.langchain, self.errors, self.url, self.key, self.model = langchain_openai, openai, url, key, model

    def connect(self, key):
        return key

    def model_of(self, client=None, model=None, **options):
        options = {"max_tokens": 12, "temperature": 0, **options}
        return self.langchain.ChatOpenAI(model=model or self.model, base_url=self.url + "/v1", api_key=client or self.key, max_retries=0,
                                         **options)

    def ask(self, *messages, **options):
        return self.model_of(**options).invoke(list(messages))

    def chat(self):
        message = self.ask(SYSTEM, QUESTION)
        check(message.content and message.usage_metadata["output_tokens"] > 0, "no text", message)

    def stream(self):
        text = "".join(chunk.content for chunk in self.model_of().stream([QUESTION]))
        check(text == self.ask(QUESTION).content, "a different text than without a stream", text)

    def tools(self):
        tools = [{"type": "function", "function": WEATHER}]
        model = self.model_of(max_tokens=80)
        message = model.bind_tools(tools, tool_choice="required", parallel_tool_calls=False).invoke([ASK_WEATHER])
        check(message.tool_calls, "no call", message)
        check_city(message.tool_calls[0]["args"], message)
        result = {"role": "tool", "tool_call_id": message.tool_calls[0]["id"], "content": "sunny"}
        check(model.bind_tools(tools, tool_choice="none").invoke([ASK_WEATHER, message, result]).content, "no text after the result")

    def schema(self):
        wanted = {"title": "city", "description": "A city.", **CITY}
        found = self.model_of(max_tokens=40).with_structured_output(wanted, method="json_schema", strict=True).invoke([QUESTION])
        check_city(found, found)

    # langchain-openai drops `reasoning_content`.
    thoughts = None

    def continue_(self):
        text = self.ask(QUESTION, BEGUN).content
        check_begun(text)


CLIENTS = (OpenaiChat, OpenaiResponses, Anthropic, Litellm, Langchain)


def refusal(failure):
    """Returns a server's error as one line for a cell."""
    body = getattr(failure, "body", None)
    error = body.get("error", body) if isinstance(body, dict) else None
    said = error.get("message") if isinstance(error, dict) else getattr(failure, "message", str(failure))
    return short(f"refused: {said}")


def short(text):
    text = " ".join(text.split()).replace("|", "\\|")
    return text if len(text) <= LONGEST else text[:LONGEST - 3] + "..."


def cell(client, feature):
    method = getattr(client, feature if feature not in ("errors", "continue") else feature + "_")
    if method is None:
        return ""
    try:
        method()
        return "yes"
    # Whatever a package does with the response counts as the server's result.
    except Exception as failure:
        print(f"{client.name}, {feature}: {type(failure).__name__}: {str(failure)[:600]}", file=sys.stderr)
        return refusal(failure) if hasattr(failure, "status_code") else short(f"no: {getattr(failure, 'what', failure)}")


def model_at(url, key):
    import openai
    return openai.OpenAI(base_url=url + "/v1", api_key=key).models.list().data[0].id


def matrix(url, key):
    model = model_at(url, key)
    cells = {}
    for make in CLIENTS:
        client = make(url, key, model)
        cells[client.name] = {feature: cell(client, feature) for feature in FEATURES}
    return cells


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("url")
    parser.add_argument("--key", default="none")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    cells = matrix(options.url.rstrip("/"), options.key)
    if options.json:
        print(json.dumps(cells))
        return
    print("| client | " + " | ".join(FEATURES) + " |")
    print("|---" * (len(FEATURES) + 1) + "|")
    for name, row in cells.items():
        print(f"| {name} | " + " | ".join(row.values()) + " |")


if __name__ == "__main__":
    main()
