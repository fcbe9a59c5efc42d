"""`cswf cite`: the works that a recipe rests on, each once, as BibTeX that can be read."""

from __future__ import annotations

import json
import re
from importlib.metadata import version

import pytest
import yaml

from cswf_core.recipe.citations import Citation
from tests.cli.conftest import write_plugin
from tests.project.sources import read

OWN = "@article{mine2024, author = {Mine, A.}, title = {My Directions}, year = 2024}"


def bibliography(text: str) -> dict[str, dict[str, str]]:
    """The fields of every entry by its key: a reader that takes one form of BibTeX and nothing else."""
    entries: dict[str, dict[str, str]] = {}
    lines = iter(text.splitlines())
    for line in lines:
        if not line or line.startswith("% "):
            assert "@" not in line
            continue
        head = re.fullmatch(r"@(article|inproceedings|misc|techreport)\{([a-z0-9-]+),", line)
        assert head, line
        assert head[2] not in entries
        fields = entries[head[2]] = {}
        for field in lines:
            if field == "}":
                break
            pair = re.fullmatch(r"  ([a-z]+) = \{(.+)\}(,?)", field)
            assert pair, field
            assert pair[2].isascii(), field
            assert pair[1] not in fields
            assert pair[2].count("{") == pair[2].count("}"), field
            fields[pair[1]] = pair[2]
        assert not pair[3], field  # the last field has no comma
    return entries


def works(cswf, *arguments) -> dict[str, dict[str, str]]:
    return bibliography(cswf.output("cite", *arguments))


def test_method_and_program_are_always_cited_as_the_citation_file_has_them(cswf):
    cited = works(cswf, "toy-cswf")
    facts = yaml.safe_load(read("CITATION.cff"))
    paper, program = cited["du2023nonparametric"], cited["cswf"]
    (described,) = [each for each in facts["references"] if each["year"] == 2023]

    def plain(title: str) -> str:
        return title.replace("{", "").replace("}", "")

    assert plain(paper["title"]) == described["title"]
    names = [f"{each['family-names']}, {each['given-names']}" for each in described["authors"]]
    assert paper["author"] == " and ".join(names)
    assert plain(program["title"]) == facts["title"]
    assert plain(program["author"]) == facts["authors"][0]["name"]
    assert program["note"] == f"Version {version('cswf')}"
    swf = works(cswf, "swf-baseline")["liutkus2019sliced"]
    assert plain(swf["title"]) == facts["references"][1]["title"]


def test_only_works_that_the_recipe_uses_are_cited(cswf):
    cited = works(cswf, "fid-cifar10")
    assert {"krizhevsky2009learning", "heusel2017gans", "parmar2022aliased", "liutkus2019sliced"} <= set(cited)
    assert "lecun1998gradient" not in cited
    changed = works(cswf, "fid-cifar10", "data=mnist", "condition=one-hot", "cdf=spline", "evaluate.metrics=[]")
    assert set(changed) == {"du2023nonparametric", "cswf", "lecun1998gradient", "gregory1982piecewise"}


def test_plugins_cite_by_their_parameters_inside_others_and_in_variants(cswf):
    pixels = "evaluate.metrics=[{use: nearest-neighbours, spaces: [pixels]}]"
    assert "parmar2022aliased" not in works(cswf, "digits", pixels)
    nested = works(
        cswf, "digits", "evaluate.metrics=[nearest-neighbours]", "projection={use: high-pass, of: orthogonal}"
    )
    assert {"parmar2022aliased", "rowland2019orthogonal"} <= nested.keys()
    rows = json.loads(cswf.output("cite", "ablation-projections", "--json"))
    assert any("projection orthogonal" in row["used_by"] for row in rows)


def test_json_has_each_work_once_with_all_that_it_is_used_by(cswf):
    rows = {row["key"]: row for row in json.loads(cswf.output("cite", "fid-mnist", "--json"))}
    assert {"metric fid", "metric kid"} <= set(rows["parmar2022aliased"]["used_by"])
    assert rows["lecun1998gradient"]["used_by"] == ["dataset mnist"]
    for row in rows.values():
        assert bibliography(row["bibtex"]) == {row["key"]: row["fields"]}


def test_every_built_in_reference_is_an_entry_with_a_key_of_its_own(registry):
    works = {}
    for plugin in registry.plugins:
        own = plugin.factory.references
        for text in () if isinstance(own, property) else own:
            reference = Citation.parse(text)
            assert works.setdefault(reference.key, reference) == reference
            assert reference.fields["year"].isdecimal()
            bibliography(reference.bibtex)
    assert len({reference.work for reference in works.values()}) == len(works) == 16


def cite_with(cswf, tmp_path, references: object):
    body = f"references = {references!r}\ndef sample(self, space, count, draw): ..."
    write_plugin(tmp_path / "mine.py", "projection", body)
    return cswf("cite", "digits", "projection=mine", "--plugins-dir", tmp_path)


def test_a_work_that_two_plugins_cite_differently_comes_once_and_keys_stay_unique(cswf, tmp_path):
    same = (
        '@inproceedings{Du, author="Du, C.", title={Nonparametric generative modeling with {C}onditional '
        + ("Sliced-Wasserstein Flows}, year = 2023,}")
    )
    other = OWN.replace("mine2024", "cswf")
    cited = bibliography(cite_with(cswf, tmp_path, (OWN.replace("My", "Own"), same, other)).out)
    assert "Du" not in cited
    assert cited["mine2024"] == {"author": "Mine, A.", "title": "Own Directions", "year": "2024"}
    assert cited["cswf-2"]["title"] == "My Directions"


@pytest.mark.parametrize(
    ("references", "complaint"),
    [
        (OWN, "references must be a tuple of BibTeX entries, got"),
        ((3,), "references must be a tuple of BibTeX entries, got (3,)"),
        (("Mine, 2024",), "it should begin with @article{key, or the like, and begins with 'Mine, 2024'"),
        ((OWN[:-1],), "it should have a comma or the last brace at its end"),
        ((OWN + OWN,), "it should end with its last brace"),
        ((OWN.replace("A.}", "A.}}"),), "it should end with its last brace, and goes on: ', title ="),
        ((OWN.replace("s}", "s{"),), "braces do not match in '{My Directions{"),
        ((OWN.replace("2024}", "soon}"),), "it should have a value in braces at 'soon}'"),
        ((OWN.replace("author", "writer"),), "it has no author"),
    ],
)
def test_a_reference_that_is_none_is_one_sentence_in_the_plugin_s_name(cswf, tmp_path, references, complaint):
    done = cite_with(cswf, tmp_path, references)
    assert (done.status, done.out) == (2, "")
    assert len(done.err.splitlines()) == 1
    assert done.err.startswith("projection 'mine' (mine.py): ")
    assert complaint in done.err
