"""What Holdfast gives out: its names, and its errors with their codes."""

import importlib
import inspect
import pkgutil
import re

import pytest

import holdfast
from holdfast import errors
from holdfast.errors import HoldfastError, InvalidRequestError, UnavailableError, error_classes
from tests.thorough import for_each

CODE = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")
CLASSES = [
    cls for _, cls in inspect.getmembers(errors, inspect.isclass) if issubclass(cls, HoldfastError)
]


def all_modules():
    return [
        module.name
        for module in pkgutil.walk_packages(holdfast.__path__, "holdfast.")
        if not module.name.endswith("__main__")
    ]


class TestNames:
    def test_holdfast_exports_what_it_says(self):
        assert set(holdfast.__all__) == {"__version__", "asgi"}
        assert re.fullmatch(r"\d+\.\d+\.\d+", holdfast.__version__)

    def test_asgi_is_loaded_when_it_is_asked_for(self):
        assert callable(holdfast.asgi)

    def test_unknown_name_is_an_attribute_error(self):
        with pytest.raises(AttributeError, match="nothing_of_the_kind"):
            _ = holdfast.nothing_of_the_kind

    def test_testing_exports_what_it_says(self):
        import holdfast.testing

        assert set(holdfast.testing.__all__) == {
            "FakeClock",
            "FaultyFiles",
            "FaultyObjects",
            "FaultyRanges",
            "HangingFiles",
            "HurriedClock",
            "ScriptedLog",
            "StoreFaults",
        }

    @for_each("name", all_modules())
    def test_every_module_can_be_imported_and_has_what_it_exports(self, name):
        module = importlib.import_module(name)
        assert module.__doc__
        for exported in getattr(module, "__all__", ()):
            assert hasattr(module, exported)


class TestErrors:
    def test_codes_are_unique(self):
        codes = [cls.code for cls in CLASSES]
        assert sorted(codes) == sorted(set(codes))

    @for_each("cls", CLASSES)
    def test_every_class_has_code_status_and_retryable(self, cls):
        # Some are spelled as their own specification spells them.
        is_theirs = issubclass(cls, errors.SubscriptionError) or cls.__module__.endswith(".proxy")
        spelled = str.upper if is_theirs else str.lower
        assert CODE.fullmatch(cls.code.lower())
        assert cls.code == spelled(cls.code)
        assert 400 <= cls.status <= 599
        assert isinstance(cls.retryable, bool)
        assert cls.__doc__
        assert cls.__name__.endswith("Error")

    @for_each("cls", CLASSES)
    def test_every_class_has_a_code_of_its_own(self, cls):
        assert "code" in vars(cls)

    def test_client_finds_every_class_by_its_code(self):
        found = error_classes()
        assert all(found[cls.code] is cls for cls in CLASSES)

    def test_tree_in_the_docstring_is_the_tree_of_classes(self):
        drawn, path = set(), {}
        for line in errors.__doc__.splitlines():
            if line.startswith("    "):
                name, _, status = line.strip().partition(" ")
                depth = len(line) - len(line.lstrip())
                path[depth] = name
                drawn.add((name, path.get(depth - 4, "Exception"), status))
        assert drawn == {
            (cls.__name__, cls.__base__.__name__, str(vars(cls).get("status", "")))
            for cls in error_classes().values()
        }

    def test_errors_are_raised_with_a_message_in_a_sentence(self):
        samples = [
            errors.ProducerFencedError(3),
            errors.StreamNotFoundError("b/s"),
            errors.MethodNotAllowedError("PATCH", "GET, POST"),
            errors.StreamClosedError(5),
            errors.ProducerGapError(1, 4),
        ]
        for error in samples:
            assert error.message == str(error)
            assert error.message.endswith(".")

    @for_each(
        ("error", "status"),
        [
            (errors.InvalidRequestError, 400),
            (errors.InvalidOffsetError, 400),
            (errors.InvalidJsonError, 400),
            (errors.ProducerFencedError, 403),
            (errors.StreamNotFoundError, 404),
            (errors.MethodNotAllowedError, 405),
            (errors.RequestTimeoutError, 408),
            (errors.StreamExistsError, 409),
            (errors.StreamClosedError, 409),
            (errors.ContentTypeMismatchError, 409),
            (errors.ProducerGapError, 409),
            (errors.StreamSeqError, 409),
            (errors.PayloadTooLargeError, 413),
            (errors.HeadersTooLargeError, 431),
            (errors.VersionNotSupportedError, 505),
            (errors.OverloadedError, 503),
            (errors.CommitFailedError, 503),
            (errors.CommitUnknownError, 503),
        ],
    )
    def test_status_is_the_documented_one(self, error, status):
        assert error.status == status

    def test_only_what_may_succeed_unchanged_is_retryable(self):
        retryable = {cls for cls in CLASSES if cls.retryable}
        waiting_helps = (
            UnavailableError,
            errors.RequestTimeoutError,
            errors.RateLimitedError,
            errors.OutboundError,
        )
        assert all(issubclass(cls, waiting_helps) for cls in retryable)
        assert not any(issubclass(cls, InvalidRequestError) for cls in retryable)

    def test_unavailable_says_when_to_try_again(self):
        for cls in CLASSES:
            if issubclass(cls, UnavailableError):
                assert cls.status == 503
                assert cls.retry_after_s >= 1
