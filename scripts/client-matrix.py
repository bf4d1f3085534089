#!/usr/bin/env python3
"""client-matrix.py URL [--key KEY] [--json]: what the client packages get from a server, as a table of clients and features.

The packages are those of scripts/client-packages.txt: the Python of .venv has them after `scripts/setup.sh test`. The server's
chat template must have tools, and thoughts that a request can turn on. A cell is `yes`, `no`, or empty where the package has no
way to ask for the feature. What went wrong in a `no` is said on stderr. --json prints the cells as JSON.

    chat      a completion with a system message, and its numbers of tokens
    stream    the same completion in parts
    tools     a call that the request demands, and what the model says after the tool's result
    schema    a completion that a JSON schema holds
    thoughts  thoughts apart from the text
    errors    the package's own class of error for a wrong value, a wrong key and an unknown model
    continue  the beginning of a completion that the request gives
"""
import argparse
import json
import os
import sys

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # or the package asks the network for prices

FEATURES = ("chat", "stream", "tools", "schema", "thoughts", "errors", "continue")
SYSTEM, QUESTION = {"role": "system", "content": "Be brief."}, {"role": "user", "content": "Name three colours."}
BEGUN = {"role": "assistant", "content": "The three colours are red,"}
CITY = {"type": "object", "properties": {"city": {"enum": ["Ghent", "Oslo"]}}, "required": ["city"], "additionalProperties": False}
WEATHER = {"name": "weather", "description": "The weather of a city.", "parameters": CITY}
ASK_WEATHER = {"role": "user", "content": "How is the weather in Ghent?"}


def is_city(value):
    return value in ({"city": "Ghent"}, {"city": "Oslo"})


def check(condition, said=""):
    if not condition:
        raise AssertionError(f"unexpected: {said!r}")


def raises(error, ask):
    try:
        ask()
    except error:
        return
    raise AssertionError(f"no {error.__name__}")


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
        check(completion.choices[0].message.content, completion)
        check(completion.usage.completion_tokens > 0, completion)

    def stream(self):
        text = "".join(c.choices[0].delta.content or "" for c in self.ask(SYSTEM, QUESTION, stream=True) if c.choices)
        check(text == self.ask(SYSTEM, QUESTION).choices[0].message.content, text)

    def tools(self):
        tools = [{"type": "function", "function": WEATHER}]
        message = self.ask(ASK_WEATHER, tools=tools, tool_choice="required", parallel_tool_calls=False, max_tokens=80).choices[0].message
        check(is_city(json.loads(message.tool_calls[0].function.arguments)), message)
        result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "sunny"}
        check(self.ask(ASK_WEATHER, message, result, tools=tools, tool_choice="none").choices[0].message.content)

    def schema(self):
        wanted = {"type": "json_schema", "json_schema": {"name": "city", "strict": True, "schema": CITY}}
        text = self.ask(QUESTION, response_format=wanted, max_tokens=40).choices[0].message.content
        check(is_city(json.loads(text)), text)

    def thoughts(self):
        message = self.ask(QUESTION, reasoning_effort="high").choices[0].message
        check(message.reasoning_content and not message.content, message)

    def errors_(self):
        raises(self.errors.BadRequestError, lambda: self.ask(QUESTION, temperature=-1))
        raises(self.errors.AuthenticationError, lambda: self.ask(QUESTION, client=self.connect("wrong")))
        raises(self.errors.NotFoundError, lambda: self.ask(QUESTION, model="nobody/nothing"))

    def continue_(self):
        text = self.ask(QUESTION, BEGUN).choices[0].message.content
        check(text and not text.lstrip().startswith("The three"), text)


class OpenaiResponses(OpenaiChat):
    name = "openai, responses"

    def ask(self, *items, client=None, **options):
        options = {"model": self.model, "input": list(items), "max_output_tokens": 12, "temperature": 0, "store": False, **options}
        return (client or self.client).responses.create(**options)

    def chat(self):
        response = self.ask(QUESTION, instructions="Be brief.")
        check(response.output_text and response.usage.output_tokens > 0, response)

    def stream(self):
        text = "".join(e.delta for e in self.ask(QUESTION, stream=True) if e.type == "response.output_text.delta")
        check(text == self.ask(QUESTION).output_text, text)

    def tools(self):
        tools = [{"type": "function", "strict": False, **WEATHER}]
        response = self.ask(ASK_WEATHER, tools=tools, tool_choice="required", parallel_tool_calls=False, max_output_tokens=80)
        call = response.output[-1]
        check(is_city(json.loads(call.arguments)), response)
        result = {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}
        check(self.ask(ASK_WEATHER, *response.output, result, tools=tools, tool_choice="none").output_text)

    def schema(self):
        wanted = {"format": {"type": "json_schema", "name": "city", "strict": True, "schema": CITY}}
        text = self.ask(QUESTION, text=wanted, max_output_tokens=40).output_text
        check(is_city(json.loads(text)), text)

    def thoughts(self):
        item = self.ask(QUESTION, reasoning={"effort": "high"}).output[0]
        check(item.type == "reasoning" and item.content[0].text, item)

    def continue_(self):
        text = self.ask(QUESTION, BEGUN).output_text
        check(text and not text.lstrip().startswith("The three"), text)


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
        check(message.content[0].text and message.usage.output_tokens > 0, message)

    def stream(self):
        wanted = {"model": self.model, "messages": [QUESTION], "max_tokens": 12, "extra_body": {"temperature": 0}}
        with self.client.messages.stream(**wanted) as stream:
            text = "".join(stream.text_stream)
        check(text == self.ask(QUESTION).content[0].text, text)

    def tools(self):
        tools = [{"name": "weather", "description": "The weather of a city.", "input_schema": CITY}]
        choice = {"type": "tool", "name": "weather", "disable_parallel_tool_use": True}
        message = self.ask(ASK_WEATHER, tools=tools, tool_choice=choice, max_tokens=80)
        use = message.content[-1]
        check(is_city(use.input), message)
        turns = ASK_WEATHER, {"role": "assistant", "content": message.content}, {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": use.id, "content": "sunny"}]}
        check(self.ask(*turns, tools=tools, tool_choice={"type": "none"}).content[0].text)

    def schema(self):
        text = self.ask(QUESTION, output_config={"format": {"type": "json_schema", "schema": CITY}}, max_tokens=40).content[0].text
        check(is_city(json.loads(text)), text)

    def thoughts(self):
        block = self.ask(QUESTION, thinking={"type": "enabled", "budget_tokens": 1024}).content[0]
        check(block.type == "thinking" and block.thinking, block)

    def errors_(self):
        raises(self.errors.BadRequestError, lambda: self.ask(QUESTION, extra_body={"top_p": -1}))
        raises(self.errors.AuthenticationError, lambda: self.ask(QUESTION, client=self.connect("wrong")))
        raises(self.errors.NotFoundError, lambda: self.ask(QUESTION, model="nobody/nothing"))

    def continue_(self):
        text = self.ask(QUESTION, BEGUN).content[0].text
        check(text and not text.lstrip().startswith("The three"), text)


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
        check(message.reasoning_content and not message.content, message)


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
        check(message.content and message.usage_metadata["output_tokens"] > 0, message)

    def stream(self):
        text = "".join(chunk.content for chunk in self.model_of().stream([QUESTION]))
        check(text == self.ask(QUESTION).content, text)

    def tools(self):
        tools = [{"type": "function", "function": WEATHER}]
        model = self.model_of(max_tokens=80)
        message = model.bind_tools(tools, tool_choice="required", parallel_tool_calls=False).invoke([ASK_WEATHER])
        check(is_city(message.tool_calls[0]["args"]), message)
        result = {"role": "tool", "tool_call_id": message.tool_calls[0]["id"], "content": "sunny"}
        check(model.bind_tools(tools, tool_choice="none").invoke([ASK_WEATHER, message, result]).content)

    def schema(self):
        wanted = {"title": "city", "description": "A city.", **CITY}
        found = self.model_of(max_tokens=40).with_structured_output(wanted, method="json_schema", strict=True).invoke([QUESTION])
        check(is_city(found), found)

    thoughts = None  # the package drops `reasoning_content`

    def continue_(self):
        text = self.ask(QUESTION, BEGUN).content
        check(text and not text.lstrip().startswith("The three"), text)


CLIENTS = (OpenaiChat, OpenaiResponses, Anthropic, Litellm, Langchain)


def cell(client, feature):
    method = getattr(client, feature if feature not in ("errors", "continue") else feature + "_")
    if method is None:
        return ""
    try:
        method()
        return "yes"
    except Exception as failure:  # whatever a package does with what it got is the server's result
        print(f"{client.name}, {feature}: {type(failure).__name__}: {str(failure)[:600]}", file=sys.stderr)
        return "no"


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
