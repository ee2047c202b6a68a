from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Callable
from dataclasses import InitVar, dataclass, field, make_dataclass
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, TypedDict, cast
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenure import Job, Secret, Tenure
from tenure.errors import InvalidArguments, InvalidOption
from tenure.tasks.arguments import Arguments, decoder, dump, redacted

if TYPE_CHECKING:
    from fractions import Fraction

LIMIT = 256 * 1024


class Colour(Enum):
    RED = "red"


@dataclass
class Item:
    sku: str
    count: int = 1


@dataclass
class Order:
    id: UUID
    at: datetime
    items: list[Item] = field(default_factory=list[Item])
    price: Decimal = Decimal(0)


class Point(msgspec.Struct):
    x: float
    y: float


def analyse(repo_url: str, depth: int = 1) -> None: ...
def mixed(job: Job[int], a: int, b: str = "x", *, c: float, d: list[int] | None = None) -> None: ...
def rich(order: Order, colour: Colour, point: Point, day: date, wait: timedelta, raw: bytes) -> None: ...
def secretive(user: str, token: Secret[str], keys: list[Secret[int]]) -> None: ...
def loose(first: int, anything: Any = None) -> None: ...
def maybe(number: float | None) -> None: ...
def bounded(percent: Annotated[int, msgspec.Meta(ge=0, le=100)]) -> None: ...
def keyed(by_day: dict[date, int]) -> None: ...


def round_trip(fn: Callable[..., object], *args: Any, **kwargs: Any) -> tuple[tuple[object, ...], dict[str, object]]:
    arguments = Arguments(fn.__name__, fn, Job)
    return arguments.load(arguments.dump(arguments.bind(args, kwargs), LIMIT))


def refusal(fn: Callable[..., object], *args: Any, limit: int = LIMIT, **kwargs: Any) -> str:
    arguments = Arguments(fn.__name__, fn, Job)
    with pytest.raises(InvalidArguments) as caught:
        arguments.dump(arguments.bind(args, kwargs), limit)
    return str(caught.value)


# ── what goes through ──


def test_arguments_come_back_by_position_with_their_defaults() -> None:
    assert round_trip(analyse, "https://example.org") == (("https://example.org", 1), {})
    assert round_trip(analyse, depth=3, repo_url="x") == (("x", 3), {})


@pytest.mark.parametrize("text", ["tenure:sealed:1:key:text", "tenure:sealed:altered", "tenure:offloaded:1:5:aa"])
def test_a_text_is_not_taken_for_what_stands_for_another_value(text: str) -> None:
    jobs = Tenure()

    @jobs.task
    def same(job: Job[str], given: str) -> str:
        return job.once("kept", lambda: given) if job.checkpoint is None else job.checkpoint

    @jobs.task
    def parent(job: Job, given: str) -> list[str]:
        return job.gather("one", lambda: [same.bind(given)])

    with jobs.testing() as queue:
        handles = same.enqueue(text), parent.enqueue(text)
        queue.drain()
        assert handles[0].result() == text
        assert handles[1].result() == [text]


def test_keyword_only_parameters_come_back_as_keywords() -> None:
    assert round_trip(mixed, 1, c=0.5) == ((1, "x"), {"c": 0.5, "d": None})
    assert round_trip(mixed, a=1, b="y", c=2, d=[3]) == ((1, "y"), {"c": 2.0, "d": [3]})


def test_rich_values_come_back_as_their_annotations_say() -> None:
    order = Order(UUID(int=7), datetime(2026, 1, 2, 3, 4, 5, 678, UTC), [Item("a"), Item("b", 2)], Decimal("1.10"))
    given_ = (order, Colour.RED, Point(1.0, 2.5), date(2026, 1, 2), timedelta(hours=1.5), b"\x00\xff")

    assert round_trip(rich, *given_) == (given_, {})


def test_a_mutable_default_is_what_the_function_says() -> None:
    def collect(items: list[str] = ["default"]) -> None: ...  # noqa: B006

    assert round_trip(collect) == ((["default"],), {})


def test_constraints_in_annotations_hold() -> None:
    assert round_trip(bounded, 100) == ((100,), {})
    assert refusal(bounded, 101) == "bounded.percent: expected int <= 100 (at $.percent)"


@given(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])), st.integers())
def test_every_text_and_every_integer_survives(text: str, number: int) -> None:
    assert round_trip(analyse, text, number) == ((text, number), {})


def test_a_text_that_only_looks_like_an_escaped_nul_is_fine() -> None:
    assert round_trip(analyse, "\\u0000") == (("\\u0000", 1), {})


def test_a_local_time_written_as_text_is_the_callers_business() -> None:
    assert round_trip(analyse, "2026-01-02T03:04:05") == (("2026-01-02T03:04:05", 1), {})


# ── what is refused, and how it is said ──


def test_arguments_that_do_not_fit_the_signature_are_named() -> None:
    takes = "it takes (repo_url: str, depth: int = 1)"

    assert refusal(analyse, repo="x") == f"analyse: unexpected argument 'repo'; {takes}"
    assert refusal(analyse) == f"analyse: missing argument 'repo_url'; {takes}"
    assert refusal(analyse, "x", repo_url="y") == f"analyse: argument 'repo_url' is given twice; {takes}"
    assert refusal(analyse, "x", 1, 2) == f"analyse: 3 positional arguments given, at most 2 accepted; {takes}"


def test_a_wrong_value_is_named_with_its_place() -> None:
    assert refusal(analyse, 5) == "analyse.repo_url: expected str, got int (at $.repo_url)"
    assert refusal(loose, "1") == "loose.first: expected int, got str (at $.first)"


def test_a_wrongly_filled_dataclass_is_caught() -> None:
    wrong = Order(UUID(int=1), datetime.now(UTC), [Item(sku=cast("str", 5))])

    refused = refusal(rich, wrong, Colour.RED, Point(0, 0), date.today(), timedelta(), b"")

    assert refused == "rich.order: expected str, got int (at $.order.items[0].sku)"


def test_naive_datetimes_are_refused_wherever_they_are() -> None:
    naive = datetime(2026, 1, 2)
    advice = "give it a time zone: datetime.now(UTC)"

    deep = refusal(rich, Order(UUID(int=1), naive), Colour.RED, Point(0, 0), date.today(), timedelta(), b"")
    assert deep == f"rich.order: a naive datetime (at $.at); {advice}"
    assert refusal(loose, 1, [naive]) == f"loose.anything: a naive datetime (at $[0]); {advice}"


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
def test_numbers_that_json_would_turn_into_null_are_refused(number: float) -> None:
    assert refusal(maybe, number) == f"maybe.number: JSON has no {number} (at $); use None or a string"
    assert "$.deep[1]" in refusal(loose, 1, {"deep": [0.5, number]})


def test_text_that_not_every_store_can_keep_is_refused() -> None:
    assert refusal(analyse, "a\0b").startswith("analyse.repo_url: it has a NUL character")
    assert refusal(analyse, "\\\0").startswith("analyse.repo_url: it has a NUL character")
    assert refusal(analyse, "\ud800").startswith("analyse.repo_url: it has a lone surrogate")


def test_what_json_can_not_carry_is_refused_with_what_it_can() -> None:
    assert refusal(loose, 1, object()).startswith(
        "loose.anything: a value of type object can't be written as JSON; use plain"
    )

    circle: list[object] = []
    circle.append(circle)
    assert refusal(loose, 1, circle) == "loose.anything: it contains itself, or is nested too deeply"


@pytest.mark.parametrize("depth", [400, 600, 5_000])
def test_a_value_that_is_nested_too_deeply_is_refused_or_kept(depth: int) -> None:
    deep: list[object] = [None]
    for _ in range(depth):
        deep = [deep]
    try:
        round_trip(loose, 1, deep)
    except InvalidArguments as error:
        assert "nested too deeply" in str(error)


@dataclass
class Parcel:
    weight: int


@dataclass
class Insured(Parcel):
    worth: int


@dataclass
class Renamed(Parcel):
    kinds: ClassVar[int] = 1
    scale: InitVar[int] = 1


def test_a_subclass_whose_fields_the_handler_would_not_get_is_refused() -> None:
    def send(parcel: Parcel, other: Parcel | None = None) -> None: ...

    advice = "so it would not get worth of an Insured; declare Insured there, or pass a Parcel"
    assert refusal(send, Insured(1, 2)) == f"send.parcel: the handler takes a Parcel, {advice}"
    assert refusal(send, Parcel(1), Insured(1, 2)) == f"send.other: the handler takes a Parcel, {advice}"
    assert round_trip(send, Renamed(1), None) == ((Parcel(1), None), {})


@dataclass
class Load:
    parcels: dict[str, list[Parcel]]


def test_so_is_one_within_another_value() -> None:
    def send(
        loads: list[Load], more: tuple[Parcel, ...] = (), by_name: dict[str, Parcel | None] | None = None
    ) -> None: ...

    insured = Insured(1, 2)
    advice = (
        "the handler takes a Parcel, so it would not get worth of an Insured; declare Insured there, or pass a Parcel"
    )
    assert refusal(send, [Load({"a": [Parcel(1), insured]})]) == f"send.loads: {advice}"
    assert refusal(send, [], (Parcel(1), insured)) == f"send.more: {advice}"
    assert refusal(send, [], (), {"a": None, "b": insured}) == f"send.by_name: {advice}"
    whole = [Load({"a": [Parcel(1), Parcel(2)]})], (Parcel(3),), {"a": None, "b": Parcel(4)}
    assert round_trip(send, *whole) == (whole, {})


def test_a_model_that_keeps_what_it_does_not_declare_loses_nothing() -> None:
    pydantic = pytest.importorskip("pydantic")
    base = pydantic.create_model("Open", __config__={"extra": "allow"}, weight=(int, ...))
    wider = pydantic.create_model("Wider", __base__=base, worth=(int, ...))

    def send(parcel) -> None: ...  # type: ignore[no-untyped-def]

    send.__annotations__["parcel"] = base
    ((kept,), _) = round_trip(send, wider(weight=1, worth=2))
    assert kept == base(weight=1, worth=2)


def test_a_model_of_two_aliases_comes_back_as_it_was() -> None:
    """As an argument, and as what the same rules write: a result, a checkpoint, a signal."""
    pydantic = pytest.importorskip("pydantic")
    field, user = pydantic.Field, pydantic.AliasChoices("user_id", "uid")
    path = pydantic.AliasPath("place", "street")
    line = pydantic.create_model("Line", count=(int, field(1, validation_alias="n", serialization_alias="c")))
    late = {"defer_build": True, "extra": "forbid"}
    order = pydantic.create_model(
        "Order",
        __config__=late,
        user=(int, field(0, validation_alias=user)),
        note=(str, field("", serialization_alias="remark")),
        street=(str, field("", validation_alias=path)),
        lines=(list[line], field([], alias="orderLines")),  # type: ignore[valid-type]
        first=(line | None, field(None, serialization_alias="1st")),
        secret=(str, field("", exclude=True)),
    )
    rush = pydantic.create_model("Rush", __base__=order, by=(int, field(0, serialization_alias="until")))

    def ship(order, more=None) -> None: ...  # type: ignore[no-untyped-def]

    ship.__annotations__.update(order=order, more=list[order] | None)
    facts = {"uid": 7, "note": "x", "place": {"street": "s"}, "orderLines": [{"n": 3}], "first": {"n": 4}}
    one = order(**facts)
    assert (one.user, one.note, one.street, one.lines[0].count, one.first.count) == (7, "x", "s", 3, 4)
    assert round_trip(ship, one, [one, order()]) == ((one, [one, order()]), {})
    assert round_trip(ship, facts, None) == ((one, None), {}), "a dict has the names that are read"
    text = dump(one, "the result", LIMIT).decode()
    assert json.loads(text) == {
        "user": 7,
        "remark": "x",
        "street": "s",
        "orderLines": [{"c": 3}],
        "1st": {"c": 4},
    }, "the names that pydantic writes"
    assert decoder(order)(text) == one
    assert decoder(dict[str, order])(f'{{"a":{text}}}') == {"a": one}  # type: ignore[valid-type]
    quick = rush(**facts, by=9)
    assert decoder(rush)(dump(quick, "the result", LIMIT).decode()) == quick
    with pytest.raises(msgspec.ValidationError, match=r"valid integer, .* in 1st\.c"):
        decoder(order)(text.replace("4", '"four"'))


def test_a_field_is_never_read_under_the_name_of_another() -> None:
    pydantic = pytest.importorskip("pydantic")
    field = pydantic.Field
    model = pydantic.create_model(
        "Order",
        user=(int, field(0, serialization_alias="uid")),
        other=(int, field(0, validation_alias="uid")),
        third=(int, field(0, validation_alias=pydantic.AliasPath("user", "id"))),
    )

    def ship(order, more=None) -> None: ...  # type: ignore[no-untyped-def]

    ship.__annotations__.update(order=model, more=list[model] | None)
    why = "under a name that it does not read, so the handler would not get it; give the field one alias= for both"
    assert refusal(ship, model(user=7)) == f"ship.order: Order writes user {why}"
    assert refusal(ship, model(), [model(user=7)]) == f"ship.more: Order writes user {why}"
    assert round_trip(ship, model(), None) == ((model(), None), {})


@pytest.mark.parametrize("text", [b"<html>", b'7,"depth":9', b'{"a":1', b"nope"])
def test_a_raw_value_that_is_no_json_is_refused(text: bytes) -> None:
    """As a result it would become more than one argument of the job that takes it."""

    def send(body: msgspec.Raw) -> None: ...

    if b"," not in text:  # among the arguments that is another argument, which is refused as that
        assert refusal(send, msgspec.Raw(text)).startswith("send.body: a msgspec.Raw in it is no JSON: ")
    with pytest.raises(InvalidArguments, match=r"the result: a msgspec\.Raw in it is no JSON"):
        dump(msgspec.Raw(text), "the result", LIMIT)
    assert dump([msgspec.Raw(b' {"a": 1}')], "the result", LIMIT) == b'[ {"a": 1}]'


def test_a_private_field_of_attrs_is_refused_unless_it_has_its_default() -> None:
    attrs = pytest.importorskip("attrs")
    kind = attrs.make_class("At", {"x": attrs.field(type=int), "_tries": attrs.field(type=int, default=3)})

    def go(at) -> None: ...  # type: ignore[no-untyped-def]

    go.__annotations__["at"] = kind
    assert refusal(go, kind(1, tries=5)).startswith("go.at: _tries of an At is private, and not written as JSON")
    assert round_trip(go, kind(1)) == ((kind(1),), {})


class Options(TypedDict, total=False):
    retries: int


def test_a_key_that_a_typed_dict_does_not_have_is_refused() -> None:
    def go(options: Options, more: tuple[Options, ...] = (), counts: dict[int, int] | None = None) -> None: ...

    why = "the handler would not get 'retires'; its TypedDict has no such key"
    assert refusal(go, {"retires": 5}) == f"go.options: {why}"
    assert refusal(go, {}, ({"retries": 1}, {"retires": 5, "retries": 2})) == f"go.more: {why}"
    assert round_trip(go, {"retries": 5}, (), {1: 2}) == (({"retries": 5}, (), {1: 2}), {})


def test_an_offset_with_seconds_is_refused_as_json_would_round_it() -> None:
    mean_time = datetime(1900, 1, 1, tzinfo=timezone(timedelta(minutes=53, seconds=28)))
    said = refusal(loose, 1, [mean_time])
    assert said == (
        "loose.anything: an offset that has seconds, 1900-01-01T00:00:00+00:53:28 (at $[0]); JSON has none such: "
        "astimezone(UTC)"
    )


def test_a_payload_past_its_limit_is_refused_with_both_sizes() -> None:
    refused = refusal(analyse, "x" * LIMIT)

    assert refused.startswith("analyse.repo_url: 256")
    assert refused.endswith(
        "the limit is 256 KiB; store a path or a key instead, or set offload (docs/large-values.md)"
    )
    assert refusal(analyse, "xxxx", limit=20).startswith("analyse: 29 bytes as JSON, the limit is 20 bytes")


def test_a_stored_payload_that_no_longer_fits_says_why() -> None:
    arguments = Arguments("analyse", analyse, Job)

    for payload, why in (
        ('{"repo_url":"x","branch":"main"}', "unexpected argument 'branch'; it takes (repo_url: str, depth: int = 1)"),
        ("{}", "missing argument 'repo_url'; it takes (repo_url: str, depth: int = 1)"),
        ("{", "input data was truncated"),
    ):
        with pytest.raises(InvalidArguments) as caught:
            arguments.load(payload)
        assert str(caught.value) == f"analyse: {why}"


def test_a_new_argument_with_a_default_takes_old_payloads() -> None:
    assert Arguments("analyse", analyse, Job).load('{"repo_url":"x"}') == (("x", 1), {})


# ── secrets ──


def test_a_secret_goes_through_and_is_shown_nowhere() -> None:
    args = ("ada", Secret("t0p"), [Secret(1), Secret(2)])
    arguments = Arguments("secretive", secretive, Job)
    payload = arguments.dump(arguments.bind(args, {}), LIMIT)

    assert arguments.load(payload) == (args, {})
    assert redacted(payload) == '{"user":"ada","token":"***","keys":["***","***"]}'
    assert f"{args}" == "('ada', ***, [***, ***])"


def test_a_secret_of_the_wrong_kind_is_refused_without_being_shown() -> None:
    refused = refusal(secretive, "ada", Secret(12345), [])
    assert refused.startswith("secretive.token: expected str, got int")
    assert "12345" not in refused
    assert refusal(secretive, "ada", "t0p", []) == "secretive.token: expected a Secret(…) (at $.token)"


def test_redacting_leaves_everything_else_as_it_is() -> None:
    assert redacted('{"a": [1, 2.50, "x"]}') == '{"a": [1, 2.50, "x"]}'


# ── declarations that are refused ──


def unannotated(a, b: int): ...  # type: ignore[no-untyped-def]
def starred(*args: int) -> None: ...
def keywords(**kwargs: int) -> None: ...
def positional(a: int, /) -> None: ...
def job_later(a: int, job: Job) -> None: ...
def job_by_name(*, job: Job) -> None: ...
def job_or_none(job: Job[int] | None = None) -> None: ...
def job_with_a_note(job: Annotated[Job, "never None"]) -> None: ...
def jobs_in_a_list(a: int, jobs: list[Job]) -> None: ...
def first_any(a: Any) -> None: ...
def first_object(a: object) -> None: ...


@pytest.mark.parametrize(
    ("fn", "why"),
    [
        (unannotated, "unannotated: parameter 'a' has no annotation; write a: Job, or its type"),
        (starred, "starred: *args can't be stored by name"),
        (keywords, "keywords: **kwargs can't be stored by name"),
        (positional, "positional: a can't be stored by name"),
        (job_later, "job_later: the Job must be the first parameter"),
        (job_by_name, "job_by_name: the Job must be the first parameter"),
        (job_or_none, "job_or_none: 'job: Job[int] | None = None' is not the Job, which every attempt has: make "),
        (job_with_a_note, "job_with_a_note: 'job: Annotated[Job, 'never None']' is not the Job"),
        (jobs_in_a_list, "jobs_in_a_list: 'jobs: list[Job]' is not the Job"),
        (first_any, "first_any: its first parameter 'a' is Any, which type checkers read as the Job"),
        (first_object, "first_object: its first parameter 'a' is object, which type checkers read as the Job"),
    ],
)
def test_a_signature_that_can_not_be_stored_is_refused_at_declaration(fn: Callable[..., object], why: str) -> None:
    with pytest.raises(InvalidOption) as caught:
        Arguments(fn.__name__, fn, Job)
    assert str(caught.value).startswith(why)


def forward(later: Later) -> Later:
    return later


def hidden(fraction: Fraction) -> None: ...
def impossible(callback: Callable[[], int] | Point) -> None: ...


def test_a_forward_reference_is_resolved_on_first_use() -> None:
    arguments = Arguments("forward", forward, Job)
    assert arguments.load('{"later":{"n":1}}') == ((Later(1),), {})


@dataclass
class Later:
    n: int


LATE = ["from __future__ import annotations", *[""] * (sys.version_info >= (3, 14))]  #: what evaluates annotations late


@pytest.mark.parametrize("first", LATE)
def test_a_declaration_does_not_need_what_its_annotations_name(first: str) -> None:
    text = f"""{first}
@jobs.around
def timed(job: Imported) -> Iterator[None]: yield
@jobs.task
def forward(later: Below, n: int = 1) -> None: ...
Below = int
"""
    jobs = Tenure("memory:")
    exec(compile(text, "app.py", "exec", dont_inherit=True), {"jobs": jobs})
    forward = jobs.tasks["forward"]
    assert forward.arguments.load('{"later":2}') == ((2, 1), {})
    assert str(forward.arguments) == "(later: Below, n: int = 1)"


def test_an_annotation_known_to_type_checkers_only_gives_a_sentence() -> None:
    arguments = Arguments("hidden", hidden, Job)
    with pytest.raises(
        InvalidOption, match=r"hidden: 'Fraction' in its annotations is undefined; .* not under TYPE_CHECKING"
    ):
        arguments.resolve()


def test_an_annotation_that_json_can_not_carry_gives_a_sentence() -> None:
    with pytest.raises(InvalidOption, match="impossible: JSON can't represent its annotations"):
        Arguments("impossible", impossible, Job).resolve()


def test_the_job_is_recognised_however_it_is_annotated() -> None:
    assert Arguments("mixed", mixed, Job).takes_job
    assert not Arguments("analyse", analyse, Job).takes_job
    assert str(Arguments("mixed", mixed, Job)) == "(a: int, b: str = 'x', *, c: float, d: list[int] | None = None)"


def test_keys_that_are_no_text_come_back_as_they_were() -> None:
    assert round_trip(keyed, {date(2026, 1, 2): 3}) == (({date(2026, 1, 2): 3},), {})


def test_what_the_worker_calls_fits_the_signature() -> None:
    args, kwargs = round_trip(mixed, 1, c=0.5)
    inspect.signature(mixed).bind(object(), *args, **kwargs)


# ── pydantic ──


def test_pydantic_models_go_through_nested_and_say_where_they_are_wrong() -> None:
    pydantic = pytest.importorskip("pydantic")

    class Address(pydantic.BaseModel):  # type: ignore[name-defined,misc]
        street: str
        since: datetime | None = None
        house: int = pydantic.Field(default=1, alias="houseNumber")

    Customer = make_dataclass("Customer", [("name", str), ("address", Address)])  # noqa: N806

    def welcome(customer: object, others: object) -> None: ...

    welcome.__annotations__ = {"customer": Customer, "others": list[Address], "return": None}
    address = Address(street="x", since=datetime(2026, 1, 2, tzinfo=UTC), houseNumber=7)
    customer = Customer("Ada", address)

    assert round_trip(welcome, customer, [address]) == ((customer, [address]), {})
    with pytest.raises(InvalidArguments) as caught:
        Arguments("welcome", welcome, Job).load('{"customer":{"name":"Ada","address":{"street":5}},"others":[]}')
    assert str(caught.value) == ("welcome.customer: input should be a valid string in street (at $.customer.address)")


def test_a_pydantic_secret_would_be_lost_and_is_refused() -> None:
    pydantic = pytest.importorskip("pydantic")

    class Login(pydantic.BaseModel):  # type: ignore[name-defined,misc]
        password: pydantic.SecretStr  # type: ignore[name-defined]

    def sign_in(login: object) -> None: ...

    sign_in.__annotations__ = {"login": Login, "return": None}
    assert "use tenure.Secret" in refusal(sign_in, Login(password="t0p"))


def test_ten_asterisks_in_a_pydantic_model_are_no_secret() -> None:
    pydantic = pytest.importorskip("pydantic")

    class Mail(pydantic.BaseModel):  # type: ignore[name-defined,misc]
        body: str

    def send(mail: object) -> None: ...

    send.__annotations__ = {"mail": Mail, "return": None}
    mail = Mail(body=f"a rule\n{'*' * 10}\n")
    assert round_trip(send, mail) == ((mail,), {})


def test_the_refusal_names_a_file_path_as_no_json() -> None:
    jobs = Tenure("memory:")

    @jobs.task
    def read(path: Path | None) -> None: ...

    with pytest.raises(InvalidArguments, match=r"read\.path: a value of type PosixPath can't be written as JSON"):
        read.bind(Path("a"))

    def write(path: Path) -> None: ...

    with pytest.raises(InvalidOption, match="parameter 'path' is a Path, which JSON can't represent"):
        jobs.task(write)
