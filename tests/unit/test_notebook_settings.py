"""What a notebook's widgets choose on a platform, a settings file and one of its targets; and what it imports."""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from sessionlake.errors import ConfigError
from sessionlake.notebook.context import NotebookContext, load_settings_of_notebook
from sessionlake.settings.model import Settings

NOTEBOOKS = sorted((Path(__file__).parents[2] / "notebooks").glob("*.py"))
FILE = """
capture: {columns: {price: double}}
targets:
  dev: {}
  prod:
    capture: {columns: {qty: bigint}}
    kafka: {options: !secret kafka-options}
"""


@pytest.fixture
def chosen(tmp_path: Path) -> Callable[..., Settings]:
    """The settings by widgets' values; `config` is the file unless it is given."""
    file = tmp_path / "sessionlake.yml"
    file.write_text(FILE, encoding="utf-8")

    def choose(**widgets: str) -> Settings:
        values = {"config": str(file)} | widgets
        dbutils = SimpleNamespace(widgets=SimpleNamespace(text=values.setdefault, get=values.__getitem__))
        return NotebookContext({"spark": object(), "dbutils": dbutils}).settings

    return choose


def test_a_target_section_is_read_without_its_secrets(chosen):
    settings = chosen(target="prod", catalog="lake", schema_prefix="p_")
    assert set(settings.capture.columns) == {"price", "qty"}
    assert settings.kafka.options == {}
    assert (settings.catalog, settings.schemas.ops, settings.checkpoints) == (
        "lake", "p_ops", "/Volumes/lake/p_ops/checkpoints",
    )  # fmt: skip
    assert set(chosen(target="dev").capture.columns) == {"price"}


def test_neither_the_file_nor_its_target_is_guessed(chosen):
    with pytest.raises(ConfigError, match="the notebook's widget `config` is empty"):
        chosen(config="", target="prod")
    with pytest.raises(
        ConfigError, match=r"the notebook's widget `target` is '', but .*sessionlake\.yml has the targets dev, prod"
    ):
        chosen()


@pytest.mark.parametrize("home", ["lake/demo", None])
@pytest.mark.parametrize("folder", [".", "notebooks", "notebooks/deep"])
def test_a_relative_home_is_found_from_the_folder_of_a_notebook(home, folder, tmp_path, monkeypatch):
    """Jupyter's kernel works in the notebook's folder, with the environment of the folder of its start."""
    lake = tmp_path / (home or ".sessionlake")
    lake.mkdir(parents=True)
    (lake / "sessionlake.yml").write_text("capture: {columns: {temperature: double}}", encoding="utf-8")
    (tmp_path / "notebooks" / "deep").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / folder)
    monkeypatch.delenv("SESSIONLAKE_HOME", raising=False)
    if home is None:
        (tmp_path / "sessionlake.yml").write_text("capture: {columns: {temperature: double}}", encoding="utf-8")
    else:
        monkeypatch.setenv("SESSIONLAKE_HOME", home)
    settings = load_settings_of_notebook()
    assert settings.home == lake
    assert [*settings.capture.columns] == ["temperature"]
    assert Path.cwd() == tmp_path / folder


def test_a_relative_home_that_is_nowhere_begins_at_the_working_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SESSIONLAKE_HOME", "no/lake/here")
    assert load_settings_of_notebook().home == tmp_path / "no" / "lake" / "here"


@pytest.mark.parametrize("file", NOTEBOOKS, ids=lambda file: file.stem)
def test_what_a_notebook_imports_exists(file: Path) -> None:
    imported = [node for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.ImportFrom)]
    for node in imported:
        names = [alias.name for alias in node.names]
        module = __import__(node.module or "", fromlist=names)  # imports submodules, too
        assert [name for name in names if not hasattr(module, name)] == [], node.module
