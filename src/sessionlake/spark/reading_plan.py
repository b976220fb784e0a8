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
from sessionlake.spark.failures import parse_spark_failure, summarize_spark_message
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


def _list_class_names(package: str, names: str) -> frozenset[str]:
    """Returns these class names, which are separated by spaces, with a package's name before each."""
    return frozenset(package + name for name in names.split())


LISTS = (
    _list_class_names(
        _LOGICAL,
        "DescribeColumn DescribeFunction DescribeNamespace DescribeRelation ShowColumns ShowFunctions ShowNamespaces "
        "ShowPartitions ShowTableProperties ShowTables ShowViews",
    )
    | _list_class_names(_DELTA, "DescribeDeltaDetailCommand DescribeDeltaHistory")
    | _list_class_names(f"{_SPARK}execution.command.", "DescribeQueryCommand ExplainCommand")
)
"""Commands that describe tables and plans, and change nothing."""

_ALLOWED = (
    LISTS
    | _list_class_names(
        _LOGICAL,
        "Aggregate Distinct Except Filter Generate GlobalLimit Intersect Join LateralJoin LocalLimit LocalRelation "
        "Offset OneRowRelation Pivot Project RepartitionByExpression Sample Sort SubqueryAlias Union Unpivot "
        "UnresolvedHint UnresolvedWith WithWindowDefinition",
    )
    | _list_class_names(
        _ANALYSIS,
        "CurrentNamespace$ MultiAlias NamedParameter PosParameter RelationTimeTravel UnresolvedAlias "
        "UnresolvedAttribute UnresolvedExtractValue UnresolvedFunction UnresolvedFunctionName UnresolvedGenerator "
        "UnresolvedHaving UnresolvedInlineTable UnresolvedNamespace UnresolvedOrdinal UnresolvedRegex "
        "UnresolvedRelation UnresolvedStar UnresolvedStarExceptOrReplace UnresolvedStarWithColumns "
        "UnresolvedSubqueryColumnAliases UnresolvedTable UnresolvedTableOrView UnresolvedTableValuedFunction "
        "UnresolvedTVFAliases",
    )
    | _list_class_names(
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
    | _list_class_names(f"{_EXPRESSION}aggregate.", "AggregateExpression AnyValue First Last")
)
# Nodes that contain neither plans nor expressions.
_LEAVES = _list_class_names(
    _EXPRESSION, "Literal AttributeReference UnresolvedNamedLambdaVariable"
) | _list_class_names(
    _ANALYSIS, "UnresolvedAttribute UnresolvedRelation UnresolvedTable UnresolvedTableOrView UnresolvedNamespace"
)


@dataclass(frozen=True)
class TablesAndFunctionsUsed:
    """The tables and functions that a SQL statement uses.

    Attributes:
        tables: The names of the tables it reads, as the statement writes them. Names that it defines by WITH are left
            out.
        functions: Those functions it calls that are not Spark's.
        lists: True if it lists or describes tables instead of reading them.
    """

    tables: frozenset[Name]
    functions: frozenset[str]
    lists: bool


def find_tables_and_functions(
    spark: SparkSession, sql: str, allowed_functions: AbstractSet[str] = frozenset()
) -> TablesAndFunctionsUsed:
    """Returns the tables and functions that a SQL statement uses, without running it.

    Args:
        spark: The session whose parser is used.
        sql: The statement.
        allowed_functions: Functions that it may call in addition to Spark's, in lower case, with their schema if they
            have one.

    Raises:
        UsageError: Spark cannot parse the statement, or it does more than read.
    """
    plan = _parse_with_spark(spark, "parsePlan", sql)
    walk = _PlanWalker(spark, allowed_functions)
    walk.check_plan_part(plan, frozenset())
    return TablesAndFunctionsUsed(
        frozenset(walk.tables), frozenset(walk.functions), lists=_read_java_class_name(plan) in LISTS
    )


def require_own_columns_only(spark: SparkSession, option: str, condition: str) -> None:
    """Checks that a SQL condition only computes from a table's own columns.

    Args:
        spark: The session whose parser is used.
        option: The command's option that has the condition; errors begin with it.
        condition: The SQL expression.

    Raises:
        UsageError: Spark cannot parse the condition, it reads another table, or it calls a function that is not
            allowed.
    """
    walk = _PlanWalker(spark, frozenset())
    try:
        walk.check_plan_part(_parse_with_spark(spark, "parseExpression", condition), frozenset())
    except UsageError as error:
        raise UsageError(f"{option}: {error}") from None
    if walk.tables:
        raise UsageError(
            f"{option}: the condition reads another table, {_join_name_parts(min(walk.tables))}",
            fix="Use only columns of the table itself in the condition",
        )


def _parse_with_spark(spark: SparkSession, parser_method: str, text: str) -> Any:
    """Returns the Java object into which Spark parses a text.

    Args:
        parser_method: The method of Spark's SQL parser: `parsePlan` or `parseExpression`.

    Raises:
        UsageError: The text is not valid SQL, or the session is one of Spark Connect.
    """
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    session = getattr(spark, "_jsparkSession", None)
    if session is None:
        raise UsageError(
            "query: on this cluster, Spark Connect does not show the parsed statement",
            why="So sessionlake cannot check that the statement only reads",
            fix="Run it on a cluster with dedicated access mode, or with `sessionlake remote query`",
        )
    try:
        return getattr(session.sessionState().sqlParser(), parser_method)(text)
    except PySparkException as error:
        raise UsageError(summarize_spark_message(str(error))) from None
    except Py4JError as error:
        raise UsageError(str(parse_spark_failure(error))) from None


@dataclass
class _PlanWalker:
    """Visits all nodes of a parsed plan, refuses those that are not allowed, and collects the names that they use.

    Attributes:
        spark: The session that has parsed the plan.
        allowed_functions: Functions that the plan may call in addition to Spark's.
        tables: The names of tables collected so far.
        functions: The allowed functions collected so far.
    """

    spark: SparkSession
    allowed_functions: AbstractSet[str]
    tables: set[Name] = field(default_factory=set)
    functions: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        find = self.spark.sparkContext._jvm.java.lang.Class.forName  # noqa: SLF001 - the JVM has no public name
        self._node, self._many, self._product = map(
            find, (f"{_SPARK}catalyst.trees.TreeNode", "scala.collection.Iterable", "scala.Product")
        )

    def check_plan_part(self, plan_part: Any, defined_names: frozenset[str]) -> None:
        """Collects the names in a part of the plan.

        Args:
            plan_part: A node, a collection of parts, or a plain value.
            defined_names: Names that WITH has defined and that this part of the plan may use.

        Raises:
            UsageError: A node or function is not one of the allowed ones.
        """
        from py4j.java_gateway import JavaObject

        if not isinstance(plan_part, JavaObject):
            return
        if self._node.isInstance(plan_part):
            self._check_plan_node(plan_part, _read_java_class_name(plan_part), defined_names)
        else:
            for part in self._list_child_plan_parts(plan_part):
                self.check_plan_part(part, defined_names)

    def _check_plan_node(self, node: Any, class_name: str, defined_names: frozenset[str]) -> None:
        """Checks one node of the plan, and all nodes below it.

        Args:
            node: The node's Java object.
            class_name: The name of its Java class.
            defined_names: Names that WITH has defined and that the node may use.
        """
        if class_name not in _ALLOWED:
            raise UsageError(
                f"query: the statement contains {_strip_java_package(class_name)}, which may do more than read the "
                "lake's tables, so it was not run",
                fix="Leave that part out: a plain SELECT always works",
            )
        if class_name == _WITH:
            self._check_with_clause(node, defined_names)
            return
        self._collect_names_of_node(node, class_name, defined_names)
        if class_name not in _LEAVES:
            for part in self._list_child_plan_parts(node):
                self.check_plan_part(part, defined_names)

    def _check_with_clause(self, with_node: Any, defined_names: frozenset[str]) -> None:
        """Checks a WITH clause. Each of its queries may use the queries before it, and a recursive one also itself."""
        recursive = any(
            part is True for part in _iterate_scala_collection(with_node.productIterator(), is_iterator=True)
        )
        for named in _iterate_scala_collection(with_node.cteRelations()):
            name = str(named.productElement(0)).lower()
            self.check_plan_part(named.productElement(1), defined_names | {name} if recursive else defined_names)
            defined_names |= {name}
        self.check_plan_part(with_node.child(), defined_names)

    def _collect_names_of_node(self, node: Any, class_name: str, defined_names: frozenset[str]) -> None:
        """Adds the names that a node uses to `tables` and `functions`.

        Raises a `UsageError` for a name that is not allowed.
        """
        if class_name == _RELATION or class_name in _TABLES:
            name = _read_lower_case_name(node.multipartIdentifier())
            if class_name == _RELATION and not node.options().isEmpty():
                raise UsageError(
                    f"query: the statement sets options for the table {_join_name_parts(name)}, which is not "
                    "allowed, so it was not run",
                    fix="Remove `WITH (…)` after the table's name in the statement",
                )
            if not (len(name) == 1 and name[0] in defined_names):
                self.tables.add(name)
        elif class_name == _ATTRIBUTE and (name := _read_lower_case_name(node.nameParts())) in {(who,) for who in WHO}:
            raise UsageError(
                f"query: {name[0]} without a table's name can mean the user who runs the command, so the "
                "statement was not run",
                fix=f"For a column of that name, write the table before it, as in t.{name[0]}",
            )
        elif class_name == _FUNCTION:
            self._collect_function_name(_read_lower_case_name(node.nameParts()))
        elif class_name == _TABLE_FUNCTION:
            self._collect_function_name(_read_lower_case_name(node.name()))
        elif class_name == _GENERATOR:
            self._collect_function_name((str(node.name().unquotedString()).lower(),))

    def _collect_function_name(self, name: Name) -> None:
        """Adds a called function to `functions`, unless it is Spark's.

        Raises a `UsageError` if it may not be called.
        """
        called = _join_name_parts(name)
        if called in self.allowed_functions:
            self.functions.add(called)
        elif len(name) > 1 or called not in SAFE_FUNCTIONS:
            raise UsageError(
                f"query: the statement calls the function {called}, so it was not run",
                why="Only Spark's functions that compute from their arguments, and the lake's own functions, "
                "are allowed",
                fix="Leave it out of the statement",
            )

    def _list_child_plan_parts(self, part: Any) -> Iterator[Any]:
        """Yields the parts of a Java object: the items of a Scala collection, or the fields of a Scala case class."""
        if self._many.isInstance(part):
            yield from _iterate_scala_collection(part)
        elif self._product.isInstance(part):
            yield from _iterate_scala_collection(part.productIterator(), is_iterator=True)


def _iterate_scala_collection(collection: Any, *, is_iterator: bool = False) -> Iterator[Any]:
    """Yields the items of a Scala collection or iterator."""
    items = collection if is_iterator else collection.iterator()
    while items.hasNext():
        yield items.next()


def _read_lower_case_name(parts: Any) -> Name:
    """Returns the parts of a table's or function's name, in lower case, from a Scala collection."""
    return tuple(str(part).lower() for part in _iterate_scala_collection(parts))


def _read_java_class_name(java_object: Any) -> str:
    return str(java_object.getClass().getName())


def _strip_java_package(class_name: str) -> str:
    """Returns a class name without its package, for example `InsertIntoDir`."""
    return class_name.rpartition(".")[2].rstrip("$")


def _join_name_parts(name: Name) -> str:
    return ".".join(name)
