from collections.abc import Sequence
from concurrent.futures import Future

import pytest

from stillhouse.chat.rendering import Prefixes
from stillhouse.errors import ConfigError, InputError
from stillhouse.training.on_policy.teachers.packed import finished
from stillhouse.training.on_policy.teachers.router import Route, TeacherRouter
from stillhouse.training.on_policy.teachers.views import Opening
from stillhouse.types import Prompt, PromptMetadata, Sample


class Constant:
    """Gives every sampled token the same log-probability."""

    def __init__(self, name: str, logprob: float = -1.0, max_context: int | None = None) -> None:
        self.name, self.kl_coef, self.max_context = name, 1.0, max_context
        self.logprob = logprob
        self.is_closed = False

    def start(self, requests: list[Sample]) -> Future[list[list[float]]]:
        return finished([[self.logprob * sampled for sampled in request.loss_mask] for request in requests])

    def close(self) -> None:
        self.is_closed = True


class Longer:
    """Reads so many tokens more."""

    def view(self, trajectory: object, metadata: object) -> None:
        return None

    def added_tokens(self, openings: Sequence[Opening]) -> int:
        return max(7 if opening.prompt_id == "long" else 3 for opening in openings)


def metadata(tag: str | None, **more: object) -> PromptMetadata:
    return PromptMetadata("p", None, tag, "exact", dict(more))


def begin(prompt: Prompt) -> Prefixes:
    return Prefixes(prompt.messages, None, [])


MATHS, CODE, REST = Constant("maths"), Constant("code"), Constant("rest")


def test_a_prompt_goes_to_the_teacher_of_its_tag_or_to_the_one_for_all_others() -> None:
    teachers = TeacherRouter(
        [Route("maths", MATHS, ("algebra", "sums")), Route("rest", REST), Route("code", CODE, ("py",))]
    )
    tags = ["sums", "py", "poems", None]
    assert [teachers.select(metadata(tag)) for tag in tags] == [MATHS, CODE, REST, REST]
    assert teachers.select(None) is REST
    assert list(teachers.by_name) == ["maths", "rest", "code"]


def test_metadata_may_decide_in_place_of_the_tag() -> None:
    teachers = TeacherRouter([Route("maths", MATHS, ("3",))], route_by="dataset", unrouted="no_kl")
    assert teachers.route(metadata("x", dataset=3)) == "3"
    assert teachers.select(metadata("x", dataset=3)) is MATHS
    assert teachers.select(metadata("3")) is None


def test_figures_are_reported_by_routes_that_tell_prompts_apart_and_are_not_too_many() -> None:
    teachers = TeacherRouter([Route("rest", REST)])
    prompts = [Prompt(str(number), []) for number in range(33)]

    def labels(*tags: str) -> list[str]:
        return teachers.labels(prompts, {str(number): metadata(tag) for number, tag in enumerate(tags)})

    assert labels(*["sums", "py"] * 16, "sums") == ["py", "sums"]
    assert labels("sums") == ["sums"]  # the other prompts have none
    assert labels(*["sums"] * 33) == []
    assert labels(*map(str, range(33))) == []


def test_a_prompt_without_a_teacher_is_named_at_the_start() -> None:
    prompts = [Prompt("a", []), Prompt("b", [])]
    by_id = {"a": metadata("sums"), "b": metadata("poems")}
    routes = [Route("maths", MATHS, ("sums",)), Route("code", CODE, ("py", "js"))]
    with pytest.raises(InputError, match=r"prompt b .*'poems'.* sums, 'code': py, js"):
        TeacherRouter(routes).check(prompts, by_id, begin)
    lenient = TeacherRouter(routes, unrouted="no_kl")
    lenient.check(prompts, by_id, begin)
    assert lenient.select(by_id["b"]) is None
    TeacherRouter([]).check(prompts, by_id, begin)


def test_routes_that_no_prompt_has_are_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    routes = [Route("maths", MATHS, ("sums", "algebre")), Route("rest", REST)]
    TeacherRouter(routes).check(
        [Prompt("a", []), Prompt("b", [])], {"a": metadata("sums"), "b": metadata("algebra")}, begin
    )
    assert "no prompt has the tag 'algebre' of teacher 'maths'; prompts have 'sums', 'algebra'" in caplog.text


def test_teachers_who_are_for_no_prompt_at_all_are_a_mistake() -> None:
    teachers = TeacherRouter([Route("maths", MATHS, ("algebre",))], unrouted="no_kl")
    with pytest.raises(InputError, match=r"none of the 1 .*'algebra'.*'maths': algebre"):
        teachers.check([Prompt("a", [])], {"a": metadata("algebra")}, begin)


def test_a_coefficient_of_0_leaves_its_prompts_to_nobody() -> None:
    teachers = TeacherRouter([Route("maths", None, ("sums",)), Route("rest", REST)])
    teachers.check([Prompt("a", [])], {"a": metadata("sums")}, begin)
    assert teachers.select(metadata("sums")) is None
    assert list(teachers.by_name) == ["rest"]


def test_two_teachers_for_the_same_prompts_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"'maths' and 'code' .*'sums'"):
        TeacherRouter([Route("maths", MATHS, ("sums",)), Route("code", CODE, ("py", "sums"))])
    with pytest.raises(ConfigError, match=r"'maths' and 'code' .*no other teacher"):
        TeacherRouter([Route("maths", MATHS), Route("code", CODE)])


def test_the_context_leaves_room_for_the_longest_hint() -> None:
    small = Constant("small", max_context=100)
    teachers = TeacherRouter(
        [Route("small", small, ("s",), Longer()), Route("maths", Constant("maths", max_context=96))]
    )
    assert teachers.max_context == 96
    teachers.check([Prompt("long", []), Prompt("short", [])], {"long": metadata("s"), "short": metadata("s")}, begin)
    assert teachers.max_context == 93
    assert TeacherRouter([Route("rest", REST)]).max_context is None


def test_closing_closes_every_teacher() -> None:
    constants = Constant("first"), Constant("second")
    TeacherRouter([Route("first", constants[0], ("x",)), Route("second", constants[1])]).close()
    assert all(teacher.is_closed for teacher in constants)
