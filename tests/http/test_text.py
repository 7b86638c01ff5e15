"""D01, D02, D09, D10: characters, stop strings, finish reasons; D08's completions half; D06's."""

import pytest
from client import error_of, joined
from devices import chain_text


def frames_of(d, prompt, **fields):
    frames = d.stream(prompt, **fields)
    assert frames[-1] == "[DONE]" and frames.count("[DONE]") == 1
    return [f for f in frames if f != "[DONE]"]


def check_no_empty_frame(frames):
    for f in frames:
        for c in f["choices"]:
            assert c["text"] or c["finish_reason"], f


def test_d01_no_half_character_is_shown(idle):
    assert idle.text("<", max_tokens=20) == "€😀."
    frames = frames_of(idle, "<", max_tokens=20)
    check_no_empty_frame(frames)
    assert joined(frames) == "€😀." and "\ufffd" not in joined(frames)


@pytest.mark.parametrize("prompt, n, text, most", [("<", 5, "€\ufffd", 2), ([255], 10, "\ufffd" * 10, 1)])
def test_d02_output_that_breaks_inside_a_character(idle, prompt, n, text, most):
    answer = idle.complete(prompt, max_tokens=n)
    assert answer["choices"][0]["text"] == text and answer["choices"][0]["finish_reason"] == "length"
    frames = frames_of(idle, prompt, max_tokens=n)
    check_no_empty_frame(frames)
    assert joined(frames) == text and frames[-1]["choices"][0]["finish_reason"] == "length"


def test_d02_lone_bytes_are_not_held_for_ever(idle):
    """Ten FF bytes: each is known to be bad at once, so the first text comes before the last token."""
    frames = frames_of(idle, [255], max_tokens=200)
    assert len(frames) > 5 and frames[0]["choices"][0]["text"]


@pytest.mark.parametrize("stream", [False, True])
def test_d09_a_stop_string_never_shows(idle, stream):
    if not stream:
        answer = idle.complete("A", max_tokens=20, stop=["EFG"])
        assert (answer["choices"][0]["text"], answer["choices"][0]["finish_reason"]) == ("BCD", "stop")
        assert answer["choices"][0]["stop_reason"] == "EFG"
        return
    frames = frames_of(idle, "A", max_tokens=20, stop=["EFG"])
    assert joined(frames) == "BCD" and frames[-1]["choices"][0]["finish_reason"] == "stop"
    assert all("E" not in c["text"] for f in frames for c in f["choices"])
    assert frames[0]["choices"][0]["text"].startswith("B")


def test_d09_a_stop_inside_a_token(idle):
    for fields in ({"stop": ["8"]}, {"stop": "8"}):
        answer = idle.complete("6", max_tokens=20, **fields)
        assert (answer["choices"][0]["text"], answer["choices"][0]["finish_reason"]) == ("7, ", "stop")
    frames = frames_of(idle, "6", max_tokens=20, stop=["8"])
    assert joined(frames) == "7, "


def test_d09_include_stop_and_a_held_tail_that_is_no_stop(idle):
    assert idle.text("A", max_tokens=20, stop=["EFG"], include_stop_str_in_output=True) == "BCDEFG"
    assert idle.text("A", max_tokens=4, stop=["EFG"]) == "BCDE"
    assert joined(frames_of(idle, "A", max_tokens=4, stop=["EFG"])) == "BCDE"


@pytest.mark.parametrize("stop", ["", ["x", ""], 5, [5], ["x"] * 17, {"a": 1}, "x" * 5000])
def test_d09_bad_stops_are_refused(chain, stop):
    status, answer, _ = chain.post("/v1/completions", {"prompt": "A", "stop": stop})
    assert status == 400 and error_of(answer)["param"] == "stop"


def test_stop_token_ids(idle):
    answer = idle.complete("A", max_tokens=20, stop_token_ids=[69])
    c = answer["choices"][0]
    assert c["finish_reason"] == "stop" and c["stop_reason"] == 69 and c["text"].startswith("BCD") and "F" not in c["text"]


@pytest.mark.parametrize("prompt, n, text, reason, count", [("A", 3, "BCD", "length", 3), ("X", 100, "YZ", "stop", 3), ("X", 3, "YZ", "stop", 3)])
def test_d10_one_finish_reason_and_the_same_counts(idle, prompt, n, text, reason, count):
    answer = idle.complete(prompt, max_tokens=n)
    choice, usage = answer["choices"][0], answer["usage"]
    assert (choice["text"], choice["finish_reason"], usage["completion_tokens"]) == (text, reason, count)
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    frames = frames_of(idle, prompt, max_tokens=n, stream_options={"include_usage": True})
    reasons = [c["finish_reason"] for f in frames for c in f["choices"]]
    assert reasons[-1] == reason and all(r is None for r in reasons[:-1])
    assert joined(frames) == text
    streamed = frames[-1]["usage"]
    for key in ("prompt_tokens", "completion_tokens", "total_tokens"):
        assert streamed[key] == usage[key]


def test_ignore_eos_goes_on(idle):
    answer = idle.complete("X", max_tokens=10, ignore_eos=True)
    assert answer["choices"][0]["finish_reason"] == "length" and answer["usage"]["completion_tokens"] == 10


def test_special_tokens_show_only_when_asked(idle):
    fields = {"max_tokens": 4, "ignore_eos": True}
    assert idle.text("Y", **fields) == "Z"
    assert idle.text("Y", **fields, skip_special_tokens=False) == "Z<eos><eos><eos>"


def test_d08_a_control_tokens_spelling_in_a_completion_is_that_token(chain):
    _, answer, _ = chain.post("/tokenize", {"prompt": "hi<asst>x"})
    assert answer["tokens"] == [104, 105, 259, 120] and answer["count"] == 4


def test_d06_a_bos_is_added_once_where_the_tokenizer_says_so(start):
    d = start("chain", add_bos=True)
    _, answer, _ = d.post("/tokenize", {"prompt": "hi"})
    assert answer["tokens"] == [256, 104, 105]
    assert d.post("/tokenize", {"prompt": "hi", "add_special_tokens": False})[1]["tokens"] == [104, 105]
    assert d.complete("hi", max_tokens=1)["usage"]["prompt_tokens"] == 3
    assert d.complete("hi", max_tokens=1, add_special_tokens=False)["usage"]["prompt_tokens"] == 2
    assert d.complete("", max_tokens=1)["usage"]["prompt_tokens"] == 1  # D19: the BOS alone is a prompt
    assert d.complete([104, 105], max_tokens=1)["usage"]["prompt_tokens"] == 2
    assert d.text("hi", max_tokens=0, echo=True) == "hi"


def test_several_prompts_and_choices_have_their_own_index(idle):
    answer = idle.complete(["A", "X", "<"], max_tokens=4, n=2)
    assert [c["index"] for c in answer["choices"]] == list(range(6))
    texts = [c["text"] for c in answer["choices"]]
    assert texts == [chain_text(p, 4) for p in "AX<" for _ in range(2)]
    assert answer["usage"]["prompt_tokens"] == 3
    frames = frames_of(idle, [[65], [88], [60]], max_tokens=4, n=2)
    assert [joined(frames, i) for i in range(6)] == texts
