"""Whether a SQL statement only reads, decided on the plan that Spark itself parses it into.

A plan is accepted if every node and expression of it is one of those listed here, and every function one of
`SAFE_FUNCTIONS` or of the caller's. What is not listed is refused: commands, writes, scripts, names that are computed.
The names of the tables are returned, for the caller to decide about. Files by their path (``text.`/etc/hosts` ``) are
such names, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sessionlake.errors import UsageError
from sessionlake.spark.failures import failure_of, one_line
from sessionlake.spark.sql_functions import SAFE_FUNCTIONS, WHO

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Name = tuple[str, ...]
"""The parts of a name, in lower case."""

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
"""Commands that tell about tables and plans, and change nothing."""

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
# These have neither plans nor expressions inside.
_LEAVES = _classes(_EXPRESSION, "Literal AttributeReference UnresolvedNamedLambdaVariable") | _classes(
    _ANALYSIS, "UnresolvedAttribute UnresolvedRelation UnresolvedTable UnresolvedTableOrView UnresolvedNamespace"
)


@dataclass(frozen=True)
class Reads:
    """What a statement reads.

    Attributes:
        tables: names that it reads, as written; those that it defines itself (WITH) are not among them.
        functions: which of the caller's it calls.
        lists: whether it lists or describes tables, rather than reads them.
    """

    tables: frozenset[Name]
    functions: frozenset[str]
    lists: bool


def reads_of(spark: SparkSession, sql: str, functions: AbstractSet[str] = frozenset()) -> Reads:
    """What a statement reads; nothing is run.

    Args:
        functions: what may be called besides Spark's own, in lower case, with a schema if it has one.

    Raises:
        UsageError: Spark cannot parse it, or it does more than read.
    """
    plan = _parsed(spark, "parsePlan", sql)
    walk = _Walk(spark, functions)
    walk.check(plan, frozenset())
    return Reads(frozenset(walk.tables), frozenset(walk.functions), lists=_class_of(plan) in LISTS)


def require_condition(spark: SparkSession, said: str, condition: str) -> None:
    """Checks that a condition on a table's rows only computes, and names no other table.

    Args:
        said: what an error begins with, as the option that the condition was given by.

    Raises:
        UsageError: Spark cannot parse it, or it does more.
    """
    walk = _Walk(spark, frozenset())
    try:
        walk.check(_parsed(spark, "parseExpression", condition), frozenset())
    except UsageError as error:
        raise UsageError(f"{said}: {error}") from None
    if walk.tables:
        raise UsageError(f"{said}: {_written(min(walk.tables))} is another table: use the columns of this one alone")


def _parsed(spark: SparkSession, how: str, text: str) -> Any:
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    session = getattr(spark, "_jsparkSession", None)
    if session is None:
        raise UsageError(
            "Spark Connect gives no parsed plan, so that nothing says whether the statement only reads: run it on a "
            "cluster with dedicated access mode, or by `sessionlake remote query`"
        )
    try:
        return getattr(session.sessionState().sqlParser(), how)(text)
    except PySparkException as error:
        raise UsageError(one_line(str(error))) from None
    except Py4JError as error:
        raise UsageError(str(failure_of(error))) from None


@dataclass
class _Walk:
    """Goes through all that a plan holds, whatever field it is in."""

    spark: SparkSession
    own: AbstractSet[str]
    tables: set[Name] = field(default_factory=set)
    functions: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        find = self.spark.sparkContext._jvm.java.lang.Class.forName  # noqa: SLF001 - the JVM has no public name
        self._node, self._many, self._product = map(
            find, (f"{_SPARK}catalyst.trees.TreeNode", "scala.collection.Iterable", "scala.Product")
        )

    def check(self, found: Any, defined: frozenset[str]) -> None:
        """Notes names, and refuses what is not listed.

        Args:
            defined: names that the statement has given to queries of its own at this place.
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
            raise UsageError(f"{_told(kind)} is not something that only reads the lake's tables, so it is not run")
        if kind == _WITH:
            self._check_with(node, defined)
            return
        self._note(node, kind, defined)
        if kind not in _LEAVES:
            for part in self._parts(node):
                self.check(part, defined)

    def _check_with(self, node: Any, defined: frozenset[str]) -> None:
        """Each query sees those that are defined before it, as Spark resolves them; a recursive one itself, too."""
        recursive = any(part is True for part in _iterated(node.productIterator(), whole=True))
        for named in _iterated(node.cteRelations()):
            name = str(named.productElement(0)).lower()
            self.check(named.productElement(1), defined | {name} if recursive else defined)
            defined |= {name}
        self.check(node.child(), defined)

    def _note(self, node: Any, kind: str, defined: frozenset[str]) -> None:
        if kind == _RELATION or kind in _TABLES:
            name = _name(node.multipartIdentifier())
            if kind == _RELATION and not node.options().isEmpty():
                raise UsageError(f"{_written(name)}: a table is read without options of its own")
            if not (len(name) == 1 and name[0] in defined):
                self.tables.add(name)
        elif kind == _ATTRIBUTE and (name := _name(node.nameParts())) in {(who,) for who in WHO}:
            raise UsageError(f"{name[0]} alone may be whom the command runs as: a column is written t.{name[0]}")
        elif kind == _FUNCTION:
            self._call(_name(node.nameParts()))
        elif kind == _TABLE_FUNCTION:
            self._call(_name(node.name()))
        elif kind == _GENERATOR:
            self._call((str(node.name().unquotedString()).lower(),))

    def _call(self, name: Name) -> None:
        called = _written(name)
        if called in self.own:
            self.functions.add(called)
        elif len(name) > 1 or called not in SAFE_FUNCTIONS:
            raise UsageError(
                f"the function {called} may not be called: only those of Spark that compute, and the lake's own"
            )

    def _parts(self, found: Any) -> Iterator[Any]:
        if self._many.isInstance(found):
            yield from _iterated(found)
        elif self._product.isInstance(found):
            yield from _iterated(found.productIterator(), whole=True)


def _iterated(found: Any, *, whole: bool = False) -> Iterator[Any]:
    """The items of a Scala collection, or, if `whole`, of an iterator."""
    items = found if whole else found.iterator()
    while items.hasNext():
        yield items.next()


def _name(parts: Any) -> Name:
    return tuple(str(part).lower() for part in _iterated(parts))


def _class_of(found: Any) -> str:
    return str(found.getClass().getName())


def _told(kind: str) -> str:
    """A node's class as a reader knows it: `InsertIntoDir`."""
    return kind.rpartition(".")[2].rstrip("$")


def _written(name: Name) -> str:
    return ".".join(name)
