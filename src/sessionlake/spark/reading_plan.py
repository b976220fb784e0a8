"""Decides whether a SQL statement only reads, from the plan that Spark parses it into.

A plan is accepted if this module lists every node and expression in it, and if every function is one of
`SAFE_FUNCTIONS` or allowed by the caller. Everything else is rejected: commands, writes, scripts, computed names.
The names of the tables are returned, and the caller decides whether they may be read. The path of a file
(``text.`/etc/hosts` ``) counts as the name of a table.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sessionlake.errors import UsageError
from sessionlake.spark.failures import one_line, parse_failure
from sessionlake.spark.sql_functions import SAFE_FUNCTIONS, WHO

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Name = tuple[str, ...]
"""Parts of a table's or function's name, in lower case."""

_SPARK = "org.apache.spark.sql."
_ANALYSIS, _EXPRESSION = f"{_SPARK}catalyst.analysis.", f"{_SPARK}catalyst.expressions."
_LOGICAL, _DELTA = f"{_SPARK}catalyst.plans.logical.", f"{_SPARK}delta.commands."
_WITH = f"{_LOGICAL}UnresolvedWith"
_RELATION = f"{_ANALYSIS}UnresolvedRelation"
_FUNCTION = f"{_ANALYSIS}UnresolvedFunction"
_TABLE_FUNCTION = f"{_ANALYSIS}UnresolvedTableValuedFunction"
_GENERATOR = f"{_ANALYSIS}UnresolvedGenerator"
_ATTRIBUTE = f"{_ANALYSIS}UnresolvedAttribute"
_TABLES = (f"{_ANALYSIS}UnresolvedTable", f"{_ANALYSIS}UnresolvedTableOrView")


def _classes(package: str, names: str) -> frozenset[str]:
    return frozenset(package + name for name in names.split())


LISTS = (
    _classes(
        _LOGICAL,
        "DescribeColumn DescribeFunction DescribeNamespace DescribeRelation ShowColumns ShowFunctions ShowNamespaces "
        "ShowPartitions ShowTableProperties ShowTables ShowViews",
    )
    | _classes(_DELTA, "DescribeDeltaDetailCommand DescribeDeltaHistory")
    | _classes(f"{_SPARK}execution.command.", "DescribeQueryCommand ExplainCommand")
)
"""Commands that describe tables and plans, and change nothing."""

_ALLOWED = (
    LISTS
    | _classes(
        _LOGICAL,
        "Aggregate Distinct Except Filter Generate GlobalLimit Intersect Join LateralJoin LocalLimit LocalRelation "
        "Offset OneRowRelation Pivot Project RepartitionByExpression Sample Sort SubqueryAlias Union Unpivot "
        "UnresolvedHint UnresolvedWith WithWindowDefinition",
    )
    | _classes(
        _ANALYSIS,
        "CurrentNamespace$ MultiAlias NamedParameter PosParameter RelationTimeTravel UnresolvedAlias "
        "UnresolvedAttribute UnresolvedExtractValue UnresolvedFunction UnresolvedFunctionName UnresolvedGenerator "
        "UnresolvedHaving UnresolvedInlineTable UnresolvedNamespace UnresolvedOrdinal UnresolvedRegex "
        "UnresolvedRelation UnresolvedStar UnresolvedStarExceptOrReplace UnresolvedStarWithColumns "
        "UnresolvedSubqueryColumnAliases UnresolvedTable UnresolvedTableOrView UnresolvedTableValuedFunction "
        "UnresolvedTVFAliases",
    )
    | _classes(
        _EXPRESSION,
        "Add Alias And AttributeReference BaseGroupingSets BitwiseAnd BitwiseNot BitwiseOr BitwiseXor CaseWhen Cast "
        "Coalesce Collate Concat CreateNamedStruct CreateStruct Cube CurrentDate CurrentRow$ CurrentTime "
        "CurrentTimestamp Divide EqualNullSafe EqualTo Exists Extract GreaterThan GreaterThanOrEqual GroupingSets In "
        "InSubquery IntegralDivide IsNotNull IsNull LambdaFunction LateralSubquery LessThan LessThanOrEqual Like "
        "LikeAll LikeAny ListQuery Literal LocalTimestamp Multiply NamedArgumentExpression Not NotLikeAll NotLikeAny "
        "Or Overlay PipeOperator RLike Remainder Rollup ScalarSubquery ShiftLeft ShiftRight ShiftRightUnsigned "
        "SortOrder SpecifiedWindowFrame StringLocate StringTrim StringTrimLeft StringTrimRight Substring Subtract "
        "TimestampAdd TimestampDiff TryCast UnaryMinus UnaryPositive UnboundedFollowing$ UnboundedPreceding$ "
        "UnspecifiedFrame$ UnresolvedNamedLambdaVariable UnresolvedWindowExpression Upper Lower ILike WindowExpression "
        "WindowSpecDefinition",
    )
    | _classes(f"{_EXPRESSION}aggregate.", "First Last")
)
# Nodes that contain neither plans nor expressions.
_LEAVES = _classes(_EXPRESSION, "Literal AttributeReference UnresolvedNamedLambdaVariable") | _classes(
    _ANALYSIS, "UnresolvedAttribute UnresolvedRelation UnresolvedTable UnresolvedTableOrView UnresolvedNamespace"
)


@dataclass(frozen=True)
class Reads:
    """Tables and functions that a statement uses.

    Attributes:
        tables: Names of the tables it reads, as the statement writes them, without names that it defines by WITH.
        functions: The caller's functions that it calls.
        lists: True if it lists or describes tables instead of reading them.
    """

    tables: frozenset[Name]
    functions: frozenset[str]
    lists: bool


def reads_of(spark: SparkSession, sql: str, functions: AbstractSet[str] = frozenset()) -> Reads:
    """Returns the tables and functions that a statement uses, without running it.

    Args:
        spark: The session whose parser is used.
        sql: The statement.
        functions: Functions that it may call in addition to Spark's, in lower case, with their schema if they have one.

    Raises:
        UsageError: Spark cannot parse the statement, or it does more than read.
    """
    plan = _parsed(spark, "parsePlan", sql)
    walk = _Walk(spark, functions)
    walk.check(plan, frozenset())
    return Reads(frozenset(walk.tables), frozenset(walk.functions), lists=_class_of(plan) in LISTS)


def require_condition(spark: SparkSession, option: str, condition: str) -> None:
    """Checks that a condition on a table's rows only computes and reads no other table.

    Args:
        spark: The session whose parser is used.
        option: The option that has the condition; errors begin with it.
        condition: The SQL expression.

    Raises:
        UsageError: Spark cannot parse the condition, or it does more than compute.
    """
    walk = _Walk(spark, frozenset())
    try:
        walk.check(_parsed(spark, "parseExpression", condition), frozenset())
    except UsageError as error:
        raise UsageError(f"{option}: {error}") from None
    if walk.tables:
        raise UsageError(
            f"{option}: {_written(min(walk.tables))} is another table", fix="Use only columns of the table itself"
        )


def _parsed(spark: SparkSession, how: str, text: str) -> Any:
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    session = getattr(spark, "_jsparkSession", None)
    if session is None:
        raise UsageError(
            "Spark Connect does not give the parsed plan of the statement",
            why="Without it sessionlake cannot check that the statement only reads",
            fix="Run it on a cluster with dedicated access mode, or with `sessionlake remote query`",
        )
    try:
        return getattr(session.sessionState().sqlParser(), how)(text)
    except PySparkException as error:
        raise UsageError(one_line(str(error))) from None
    except Py4JError as error:
        raise UsageError(str(parse_failure(error))) from None


@dataclass
class _Walk:
    """Walks through all nodes of a plan, checks them and collects the names they use."""

    spark: SparkSession
    allowed_functions: AbstractSet[str]
    tables: set[Name] = field(default_factory=set)
    functions: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        find = self.spark.sparkContext._jvm.java.lang.Class.forName  # noqa: SLF001 - the JVM has no public name
        self._node, self._many, self._product = map(
            find, (f"{_SPARK}catalyst.trees.TreeNode", "scala.collection.Iterable", "scala.Product")
        )

    def check(self, found: Any, defined: frozenset[str]) -> None:
        """Collects the names in a part of the plan.

        Args:
            found: A node, a collection of parts, or a plain value.
            defined: Names that WITH has defined and that this part of the plan may use.

        Raises:
            UsageError: A node or function is not one of the allowed ones.
        """
        from py4j.java_gateway import JavaObject

        if not isinstance(found, JavaObject):
            return
        if self._node.isInstance(found):
            self._check_node(found, _class_of(found), defined)
        else:
            for part in self._parts(found):
                self.check(part, defined)

    def _check_node(self, node: Any, kind: str, defined: frozenset[str]) -> None:
        if kind not in _ALLOWED:
            raise UsageError(
                f"the statement has {_short_name(kind)}, which may do more than read the lake's tables",
                why="Only statements that read are run",
                fix="Leave that part out",
            )
        if kind == _WITH:
            self._check_with(node, defined)
            return
        self._note(node, kind, defined)
        if kind not in _LEAVES:
            for part in self._parts(node):
                self.check(part, defined)

    def _check_with(self, node: Any, defined: frozenset[str]) -> None:
        """Checks WITH. Each query may use the queries before it, and a recursive query also itself."""
        recursive = any(part is True for part in _iterated(node.productIterator(), is_iterator=True))
        for named in _iterated(node.cteRelations()):
            name = str(named.productElement(0)).lower()
            self.check(named.productElement(1), defined | {name} if recursive else defined)
            defined |= {name}
        self.check(node.child(), defined)

    def _note(self, node: Any, kind: str, defined: frozenset[str]) -> None:
        if kind == _RELATION or kind in _TABLES:
            name = _name(node.multipartIdentifier())
            if kind == _RELATION and not node.options().isEmpty():
                raise UsageError(f"{_written(name)}: options of a table are not allowed", fix="Remove them")
            if not (len(name) == 1 and name[0] in defined):
                self.tables.add(name)
        elif kind == _ATTRIBUTE and (name := _name(node.nameParts())) in {(who,) for who in WHO}:
            raise UsageError(
                f"{name[0]} without a table's name may mean the user that the command runs as",
                fix=f"For a column write t.{name[0]}",
            )
        elif kind == _FUNCTION:
            self._call(_name(node.nameParts()))
        elif kind == _TABLE_FUNCTION:
            self._call(_name(node.name()))
        elif kind == _GENERATOR:
            self._call((str(node.name().unquotedString()).lower(),))

    def _call(self, name: Name) -> None:
        called = _written(name)
        if called in self.allowed_functions:
            self.functions.add(called)
        elif len(name) > 1 or called not in SAFE_FUNCTIONS:
            raise UsageError(
                f"the function {called} may not be called",
                why="Allowed are Spark's functions that only compute, and the lake's own functions",
                fix="Leave it out of the statement",
            )

    def _parts(self, found: Any) -> Iterator[Any]:
        if self._many.isInstance(found):
            yield from _iterated(found)
        elif self._product.isInstance(found):
            yield from _iterated(found.productIterator(), is_iterator=True)


def _iterated(found: Any, *, is_iterator: bool = False) -> Iterator[Any]:
    """Yields the items of a Scala collection or iterator."""
    items = found if is_iterator else found.iterator()
    while items.hasNext():
        yield items.next()


def _name(parts: Any) -> Name:
    return tuple(str(part).lower() for part in _iterated(parts))


def _class_of(found: Any) -> str:
    return str(found.getClass().getName())


def _short_name(kind: str) -> str:
    """Returns a class name without its package, for example `InsertIntoDir`."""
    return kind.rpartition(".")[2].rstrip("$")


def _written(name: Name) -> str:
    return ".".join(name)
