"""Tables to paste: whole tables of runs made by hand, what is best beyond noise, and what is told."""

from __future__ import annotations

import csv
import io
import json

import pytest

from cswf_core.errors import RunError
from cswf_core.scores.replicas import read_scored
from cswf_core.scores.tables import FORMATS, document_table, score_table
from tests.scores.runs import score, two_groups, write_run

MARKDOWN = """\
|  | FID ↓ | recall (%) ↑ |
| --- | ---: | ---: |
| amplifier=1 | **1.10 ± 0.10** | 52.0 ± 2.0 |
| amplifier=2 | 5.10 ± 0.10 | 53.0 ± 2.0 |

FID: distance of features; 500 samples against digits train (1,000). \
Recall: balls around features; 500 samples against digits train (1,000). \
± is the standard deviation over 3 seeds. Seeds 0, 1, 2. \
Computed on H200, by cswf 1.2, PyTorch 2.10, commit 0123456789ab. \
Bold: better than all others by more than noise (95% intervals)."""

LATEX = r"""\begin{table}
  \centering
  \caption{FID: distance of features; 500 samples against digits train (1,000).
    Recall: balls around features; 500 samples against digits train (1,000).
    $\pm$ is the standard deviation over 3 seeds.
    Seeds 0, 1, 2.
    Computed on H200, by cswf 1.2, PyTorch 2.10, commit 0123456789ab.
    Bold: better than all others by more than noise (95\% intervals).}
  \label{tab:mine}
  \begin{tabular}{lrr}
    \toprule
     & FID $\downarrow$ & recall (\%) $\uparrow$ \\
    \midrule
    amplifier=1 & $\mathbf{1.10} \pm 0.10$ & $52.0 \pm 2.0$ \\
    amplifier=2 & $5.10 \pm 0.10$ & $53.0 \pm 2.0$ \\
    \bottomrule
  \end{tabular}
\end{table}"""

PLAIN = """\
                   FID ↓  recall (%) ↑
amplifier=1  1.10 ± 0.10*    52.0 ± 2.0
amplifier=2   5.10 ± 0.10    53.0 ± 2.0"""

CSV = """\
run,score,mean,spread,spread_method,n,seeds,best,better,share,samples,metric,data,split,reference_count,\
reference_sha256,parameters,evaluation_seed,precision,device,cswf,torch,commit,protocol
mine,fid,1.5,0.25,standard error of one run's score: by guess,1,7,no,lower,no,500,fid,digits,train,1000,\
{digest},"{{""use"": ""fid"", ""mode"": ""clean""}}",0,float32,H200,1.2,2.10,0123456789abcdef,\
distance of features
"""


def table(folders, *wanted: str, against: str = ""):
    runs, told = read_scored(folders)
    return score_table(runs, wanted, against, told)


def test_markdown_and_latex_of_two_groups_of_seeds(tmp_path):
    made = table(two_groups(tmp_path))
    assert made.written("markdown") == MARKDOWN
    assert made.written("latex") == LATEX
    assert made.warnings() == []


def test_plain_letters_mark_the_best_with_a_star(tmp_path):
    lines = table(two_groups(tmp_path)).written("table").splitlines()
    assert [line.split() for line in lines[:3]] == [line.split() for line in PLAIN.splitlines()]
    assert lines[-1] == "*: better than all others by more than noise (95% intervals)."


def test_csv_has_a_row_for_each_score_with_all_that_it_depends_on(tmp_path):
    folder = write_run(tmp_path / "a", score(value=1.5, error=0.25, error_method="by guess"), seed=7)
    assert table([folder]).written("csv") + "\n" == CSV.format(digest="t" * 64)


def test_json_has_every_value_and_seed(tmp_path):
    document = json.loads(table(two_groups(tmp_path)).written("json"))
    first = document["rows"][0]["scores"]["fid"]
    assert (first["values"], first["seeds"], first["best"]) == ([1.0, 1.1, 1.2], [0, 1, 2], True)
    assert document["rows"][1]["scores"]["fid"]["best"] is False
    assert len(document["caption"]) == 5


def test_a_single_run_has_its_own_error_and_one_without_has_four_digits(tmp_path):
    sure = write_run(tmp_path / "a", score(value=31.2345, error=0.31, error_method="jackknife"), name="a")
    unsure = write_run(tmp_path / "b", score(value=30.1234), name="b")
    grid = table([sure, unsure]).grid()
    assert [str(row[1]) for row in grid.rows] == ["31.23 ± 0.31", "30.12"]
    assert "± is the standard error of one run's score: jackknife." in grid.caption
    assert "Of numbers without ± (FID of b) nobody knows how sure they are." in grid.caption
    assert grid.mark == ""


def test_seeds_that_agree_are_counted_and_have_no_spread(tmp_path):
    runs = [write_run(tmp_path / str(seed), score("copies_l2", 0.0), seed=seed) for seed in range(3)]
    made = table(runs)
    assert made.written("markdown").splitlines()[2] == "| mine | 0 (all 3 seeds) |"
    assert "mine & $0$ (all 3 seeds) \\\\" in made.written("latex")
    assert "±" not in "".join(made.caption())
    entry = made.plain()["rows"][0]["scores"]["copies_l2"]
    assert (entry["deviation"], entry["error"]) == (0, None)
    assert entry["method"] == "standard deviation over 3 seeds, which all have the same value"
    assert "0 (both seeds)" in table(runs[:2]).written("table")


def test_a_note_names_the_runs_that_it_is_about(tmp_path):
    folders = [
        write_run(tmp_path / name, score("fid", notes=notes), name=name)
        for name, notes in (("a", ["few samples"]), ("b", ["few samples", "other weights"]))
    ]
    assert table(folders).warnings()[-2:] == ["note: few samples", "note: b: other weights"]


def test_a_caption_leaves_out_what_a_protocol_says_of_other_columns(tmp_path):
    protocol = "mode: plain; copies: nearer than any of 500 samples; near_copies: nearer than most"
    names = ("copies_l2", "near_copies_l2")
    run = write_run(tmp_path / "a", *(score(name, protocol=protocol) for name in names))
    assert table([run], "copies_l2").caption()[0] == (
        "Copies L2: mode: plain; copies: nearer than any of 500 samples; against digits train (1,000)."
    )
    assert "near_copies: nearer than most" in table([run]).caption()[0]


def test_a_score_that_a_run_lacks_is_a_dash(tmp_path):
    both = write_run(tmp_path / "a", score("fid"), score("kid"), name="a")
    one = write_run(tmp_path / "b", score("fid"), name="b")
    made = table([both, one])
    assert made.written("markdown").splitlines()[3] == "| b | 1.000 | – |"
    assert "    b & $1.000$ & -- \\\\" in made.written("latex").splitlines()


def test_nothing_is_best_where_scores_were_computed_otherwise(tmp_path):
    sure = {"error": 0.1, "error_method": "by guess"}
    few = write_run(tmp_path / "a", score(value=1.0, **sure), name="a")
    for changed, told in (
        ({"samples": 400}, "different numbers of samples (500: a; 400: b)"),
        ({"settings": {"seed": 0, "precision": "fast"}}, "different precision (float32: a; fast: b)"),
        ({"against": {"data": "digits", "split": "train", "sha256": "f" * 64}}, "ffffffffffff: b"),
        ({"parameters": {"use": "fid", "mode": "legacy"}}, "different parameters ("),
    ):
        other = write_run(tmp_path / f"b-{told[-6:-1]}", score(value=9.0, **sure, **changed), name="b")
        made = table([few, other])
        assert made.best("fid") is None
        assert [told in sentence for sentence in made.warnings()] == [True]
    alike = write_run(tmp_path / "c", score(value=9.0, **sure), name="c")
    assert table([few, alike]).best("fid") == 0


def test_scores_are_chosen_by_name_and_split(tmp_path):
    folder = write_run(tmp_path / "a", score("fid"), score("fid_test", split="test"), score("low", detail=True))
    assert table([folder]).names == ["fid", "fid_test"]
    assert [str(each) for each in table([folder]).grid().headings[1:]] == ["FID (train) ↓", "FID (test) ↓"]
    assert table([folder], "fid").names == ["fid", "fid_test"]
    assert table([folder], "fid", against="test").names == ["fid_test"]
    assert [str(each) for each in table([folder], against="test").grid().headings[1:]] == ["FID ↓"]
    assert table([folder], "low", "fid_test").names == ["low", "fid_test"]
    with pytest.raises(RunError, match=r"no run has a score 'fidd'; did you mean 'fid'"):
        table([folder], "fidd")
    with pytest.raises(RunError, match=r"no run has a score 'fid_test' against 'train'; known: fid, low"):
        table([folder], "fid_test", against="train")


def test_a_score_of_some_seeds_only_and_notes_are_told(tmp_path):
    whole = write_run(tmp_path / "a", score("fid"), score("kid", notes=["kid: of few samples"]), seed=0)
    part = write_run(tmp_path / "b", score("fid", 2.0), seed=1)
    assert table([whole, part]).warnings() == ["mine: kid is of 1 of 2 runs", "note: kid: of few samples"]


def test_groups_are_named_by_recipe_then_keys_then_folder(tmp_path):
    runs = [write_run(tmp_path / name, score(), name=name) for name in ("a", "b")]
    runs += [write_run(tmp_path / f"c{n}", score(), name="c", amplifier=n) for n in (1, 2)]
    labels = [group.label for group in table(runs).groups]
    assert labels == ["a", "b", "c, amplifier=1", "c, amplifier=2"]
    for run in runs[2:]:
        (run / "recipe.yaml").unlink()
    assert [group.label for group in table(runs[2:]).groups] == ["c1", "c2"]
    twice = [write_run(tmp_path / f"twice/{n}", score(), name="d") for n in (1, 2)]
    assert [group.label for group in table(twice).groups] == ["1", "2"]


@pytest.mark.parametrize("format", FORMATS)
def test_a_document_has_all_its_scores_in_every_format(format):
    scores = [
        score(value=31.2345, error=0.31, error_method="jackknife"),
        score("recall_test", 0.5, split="test", meaning={"share": True}, better="higher"),
        score("low", 0.25, detail=True, against=None, better=""),
    ]
    text = document_table({"format": 2, "scores": scores, "notes": []}, format)
    if format == "json":
        assert json.loads(text)["scores"] == scores
    elif format == "csv":
        rows = list(csv.DictReader(io.StringIO(text)))
        assert [(row["score"], row["value"], row["error"]) for row in rows] == [
            ("fid", "31.2345", "0.31"), ("recall_test", "0.5", ""), ("low", "0.25", "")
        ]  # fmt: skip
    elif format == "markdown":
        assert text.splitlines()[:5] == [
            "| score | against | value | samples |",
            "| --- | --- | ---: | ---: |",
            "| fid ↓ | digits train (1,000) | 31.23 ± 0.31 | 500 |",
            "| recall\\_test (%) ↑ | digits test (1,000) | 50.00 | 500 |",
            "| low | – | 0.2500 | 500 |",
        ]
    elif format == "latex":
        assert r"    recall\_test (\%) $\uparrow$ & digits test (1,000) & $50.00$ & 500 \\" in text.splitlines()
    else:
        assert "fid ↓" in text.splitlines()[1]
        assert "± is the standard error of one run's score: jackknife." in text.splitlines()


def test_scores_too_large_to_be_scores_are_refused(tmp_path):
    with pytest.raises(RunError, match="fid is 1e\\+300, which is no score"):
        table([write_run(tmp_path / "a", score(value=1e300))])


def test_the_same_run_twice_is_one_row(tmp_path):
    folder = write_run(tmp_path / "a", score())
    assert len(table([folder, folder / "." / "../a"]).groups) == 1


def test_a_run_that_copies_is_not_ranked_and_the_caption_says_so(tmp_path):
    warned = score("copies_l2", 0.2, better="", notes=["copying: 20 of 100 samples are nearer …"])
    folders = [
        write_run(tmp_path / "copied", score("fid", 1.0, error=0.1), warned, amplifier=0),
        write_run(tmp_path / "a", score("fid", 7.0, error=0.1), amplifier=1),
        write_run(tmp_path / "b", score("fid", 9.0, error=0.1), amplifier=2),
    ]
    table = score_table(*read_scored(folders)[:1], ["fid"])
    assert table.best("fid") == 1
    assert table.caption()[-1] == "amplifier=0: not ranked, as some samples are copies of training images."
