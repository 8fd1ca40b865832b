"""Which methods share tables and figures."""

from lightning_cgrpo.objective.constraint import Constraint
from lightning_cgrpo.reporting.groups import grouped
from lightning_cgrpo.reporting.runs import MethodRuns


def method(label, task, *constraints):
    of = {"model": {"init_args": {"task": {"class_path": f"somewhere.{task}"}}}} if task else {"folder": label}
    return MethodRuns(label, of, [], {name: Constraint(at_most=0.1) for name in constraints})


def groups(*methods):
    return {name: [method.label for method in found] for name, found in grouped(methods)}


def test_methods_are_grouped_by_task_in_their_order():
    assert groups(
        method("a", "GridworldTask", "lava", "battery"),
        method("b", "GSM8KTask", "format"),
        method("c", "GridworldTask", "lava"),
        method("d", "Own", "format"),
    ) == {"Gridworld": ["a", "c"], "GSM8K": ["b"], "Own": ["d"]}


def test_a_task_without_common_constraints_is_several():
    """A general task class, such as reward functions of the user's, is of different problems."""
    length, tone = method("a", "FunctionTask", "length"), method("b", "FunctionTask", "tone", "format")
    free = method("free", "FunctionTask")
    assert groups(length, tone) == {"Function (length)": ["a"], "Function (tone, format)": ["b"]}
    # A method with constraints of both, and one without any, part nothing.
    both = method("c", "FunctionTask", "length", "tone")
    assert groups(free, length, tone, both) == {"Function": ["free", "a", "b", "c"]}
    assert groups(free, length) == {"Function": ["free", "a"]}
    assert groups(free, length, tone) == {"Function (length)": ["free", "a"], "Function (tone, format)": ["b"]}


def test_methods_without_a_configuration_join_the_constraints_they_have():
    unknown = method("x/version_0", "", "format"), method("x/version_1", "", "other")
    found = groups(*unknown, method("a", "GridworldTask", "lava"), method("b", "GSM8KTask", "format"))
    assert found == {"GSM8K": ["x/version_0", "b"], "unknown task": ["x/version_1"], "Gridworld": ["a"]}
    assert groups(*unknown) == {"unknown task": ["x/version_0", "x/version_1"]}


def test_names_are_unique():
    assert list(groups(method("a", "FooTask", "a"), method("b", "Foo", "b"))) == ["Foo (a)", "Foo (b)"]
    assert list(groups(method("a", "FooTask", "a"), method("b", "Foo", "a"))) == ["Foo (a) #1", "Foo (a) #2"]
