"""The official openai package against the daemon (max_retries=0: it would retry 429 and 5xx)."""

import openai
import pytest
from devices import CONTEXT, chain_text


@pytest.fixture(scope="module")
def api(chain):
    with openai.OpenAI(base_url=f"http://127.0.0.1:{chain.port}/v1", api_key="none", max_retries=0, timeout=60) as c:
        yield c


def test_models(api):
    assert [m.id for m in api.models.list()] == ["test"]
    assert api.models.retrieve("test").id == "test"
    with pytest.raises(openai.NotFoundError) as e:
        api.models.retrieve("nope")
    assert e.value.code == "model_not_found"


def test_a_completion(api):
    answer = api.completions.create(model="test", prompt="A", max_tokens=5, temperature=0)
    assert answer.choices[0].text == "BCDEF" and answer.choices[0].finish_reason == "length"
    assert answer.usage.prompt_tokens == 1 and answer.usage.completion_tokens == 5 and answer.usage.prompt_tokens_details.cached_tokens >= 0
    assert answer.id.startswith("cmpl-") and answer.object == "text_completion" and answer.system_fingerprint


def test_a_streamed_completion(api):
    text, last = "", None
    for part in api.completions.create(model="test", prompt="<", max_tokens=20, temperature=0, stream=True, stream_options={"include_usage": True}):
        if part.choices:
            text += part.choices[0].text
            last = part.choices[0].finish_reason
            assert part.usage is None
        else:
            assert part.usage.completion_tokens == 9
    assert text == "€😀." and last == "stop"


def test_several_choices(api):
    answer = api.completions.create(model="test", prompt=["A", "X"], n=2, max_tokens=3, temperature=0)
    assert [c.text for c in answer.choices] == ["BCD", "BCD", "YZ", "YZ"]
    texts = {}
    for part in api.completions.create(model="test", prompt="A", n=2, max_tokens=3, temperature=0, stream=True):
        for c in part.choices:
            texts[c.index] = texts.get(c.index, "") + c.text
    assert texts == {0: "BCD", 1: "BCD"}


def test_logprobs_and_echo(api):
    lp = api.completions.create(model="test", prompt="ABC", max_tokens=2, temperature=0, logprobs=2, echo=True).choices[0].logprobs
    assert lp.tokens == list("ABCDE") and lp.token_logprobs[0] is None and lp.text_offset == [0, 1, 2, 3, 4]
    assert lp.top_logprobs[1]["B"] > -0.001
    for part in api.completions.create(model="test", prompt="A", max_tokens=3, temperature=0, logprobs=1, stream=True):
        if part.choices[0].logprobs:
            assert part.choices[0].logprobs.tokens


def test_stops_and_seeds(api):
    assert api.completions.create(model="test", prompt="A", max_tokens=20, temperature=0, stop=["F", "zz"]).choices[0].text == "BCDE"
    assert api.completions.create(model="test", prompt=[65, 66], max_tokens=2, seed=3, temperature=0, user="me").choices[0].text == chain_text("B", 2)


def test_errors_become_exceptions(api):
    with pytest.raises(openai.NotFoundError):
        api.completions.create(model="nope", prompt="A")
    with pytest.raises(openai.BadRequestError) as e:
        api.completions.create(model="test", prompt="A", temperature=9)
    assert e.value.param == "temperature" and e.value.type == "invalid_request_error"
    with pytest.raises(openai.BadRequestError) as e:
        api.completions.create(model="test", prompt="b" * (CONTEXT + 1))
    assert str(CONTEXT) in e.value.message
    with pytest.raises(openai.BadRequestError):
        api.completions.create(model="test", prompt="A", stream=True, logprobs=99)
    with pytest.raises(openai.NotFoundError):
        api.chat.completions.create(model="test", messages=[{"role": "user", "content": "hi"}])


def test_leaving_a_stream_early(api, chain):
    with api.completions.create(model="test", prompt="a", max_tokens=4000, temperature=0, stream=True) as parts:
        for i, _ in enumerate(parts):
            if i == 3:
                break
    chain.wait_idle(2)
