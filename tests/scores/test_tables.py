"""Tables to paste: whole tables of runs made by hand, what is best beyond noise, and what is told."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

from cswf_core.errors import RunError
from cswf_core.scores.replicas import read_scored
from cswf_core.scores.tables import document_table, score_table
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


def table(folders, *wanted: str, against: str = ""):
    runs, told = read_scored(folders)
    return score_table(runs, wanted, against, told)


def test_two_groups_of_seeds_in_every_format(tmp_path):
    runs = two_groups(tmp_path)
    made = table([*runs, runs[0] / "../1-0"])  # the same run twice is one
    assert made.written("markdown") == MARKDOWN
    assert made.written("latex") == LATEX
    assert made.warnings() == []
    lines = made.written("table").splitlines()
    assert lines[1].split() == ["amplifier=1", "1.10", "±", "0.10*", "52.0", "±", "2.0"]
    assert lines[-1] == "*: better than all others by more than noise (95% intervals)."
    document = json.loads(made.written("json"))
    first, second = (row["scores"]["fid"] for row in document["rows"])
    assert (first["values"], first["seeds"]) == ([1.0, 1.1, 1.2], [0, 1, 2])
    assert (first["best"], second["best"]) == (True, False)
    assert len(document["caption"]) == 5


def test_csv_has_a_row_for_each_score_with_all_that_it_depends_on(tmp_path):
    folder = write_run(tmp_path / "a", score(value=1.5, error=0.25, error_method="by guess"), seed=7)
    (row,) = csv.DictReader(io.StringIO(table([folder]).written("csv")))
    assert list(row.values()) == [
        *("mine", "fid", "1.5", "0.25", "standard error of one run's score: by guess", "1", "7"),
        *("no", "lower", "no", "500", "fid", "digits", "train", "1000", "t" * 64),
        *('{"use": "fid", "mode": "clean"}', "0", "float32", "H200", "1.2", "2.10", "0123456789abcdef"),
        "distance of features",
    ]
    assert list(row)[:7] == ["run", "score", "mean", "spread", "spread_method", "n", "seeds"]
    assert list(row)[-7:] == [
        *("evaluation_seed", "precision", "device", "cswf", "torch", "commit", "protocol")
    ]


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


def test_a_note_names_the_runs_that_it_is_about_and_a_score_that_a_run_lacks_is_a_dash(tmp_path):
    few = score("fid", notes=["few samples"])
    other = score("fid", notes=["few samples", "other weights"])
    made = table(
        [
            write_run(tmp_path / "a", few, score("kid"), name="a"),
            write_run(tmp_path / "b", other, name="b"),
        ]
    )
    assert made.warnings()[-2:] == ["note: few samples", "note: b: other weights"]
    assert made.written("markdown").splitlines()[3] == "| b | 1.000 | – |"
    assert "    b & $1.000$ & -- \\\\" in made.written("latex").splitlines()
    seeds = [
        write_run(tmp_path / "0", score("fid"), score("kid", notes=["kid: of few samples"])),
        write_run(tmp_path / "1", score("fid", 2.0), seed=1),
    ]
    assert table(seeds).warnings() == ["mine: kid is of 1 of 2 runs", "note: kid: of few samples"]


def test_a_caption_leaves_out_what_a_protocol_says_of_other_columns(tmp_path):
    protocol = "mode: plain; copies: nearer than any of 500 samples; near_copies: nearer than most"
    names = ("copies_l2", "near_copies_l2")
    run = write_run(tmp_path / "a", *(score(name, protocol=protocol) for name in names))
    assert table([run], "copies_l2").caption()[0] == (
        "Copies L2: mode: plain; copies: nearer than any of 500 samples; against digits train (1,000)."
    )
    assert "near_copies: nearer than most" in table([run]).caption()[0]


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


def test_groups_are_named_by_recipe_then_keys_then_folder(tmp_path):
    def labels(runs: list[Path]) -> list[str]:
        return [group.label for group in table(runs).groups]

    runs = [write_run(tmp_path / name, score(), name=name) for name in ("a", "b")]
    runs += [write_run(tmp_path / f"c{n}", score(), name="c", amplifier=n) for n in (1, 2)]
    assert labels(runs) == ["a", "b", "c, amplifier=1", "c, amplifier=2"]
    for run in runs[2:]:
        (run / "recipe.yaml").unlink()
    assert labels(runs[2:]) == ["c1", "c2"]
    assert labels([write_run(tmp_path / f"twice/{n}", score(), name="d") for n in (1, 2)]) == ["1", "2"]


@pytest.mark.parametrize(
    ("format", "lines"),
    [
        ("csv", []),
        ("json", []),
        (
            "markdown",
            [
                "| score | against | value | samples |",
                "| fid ↓ | digits train (1,000) | 31.23 ± 0.31 | 500 |",
                "| recall\\_test (%) ↑ | digits test (1,000) | 50.00 | 500 |",
                "| low | – | 0.2500 | 500 |",
            ],
        ),
        ("latex", [r"    recall\_test (\%) $\uparrow$ & digits test (1,000) & $50.00$ & 500 \\"]),
        ("table", ["± is the standard error of one run's score: jackknife."]),
    ],
)
def test_a_document_has_all_its_scores_in_every_format(format, lines):
    scores = [
        score(value=31.2345, error=0.31, error_method="jackknife"),
        score("recall_test", 0.5, split="test", meaning={"share": True}, better="higher"),
        score("low", 0.25, detail=True, against=None, better=""),
    ]
    text = document_table({"format": 2, "scores": scores, "notes": []}, format)
    assert set(lines) <= set(text.splitlines())
    if format == "json":
        assert json.loads(text)["scores"] == scores
    elif format == "csv":
        rows = [(row["score"], row["value"], row["error"]) for row in csv.DictReader(io.StringIO(text))]
        assert rows == [("fid", "31.2345", "0.31"), ("recall_test", "0.5", ""), ("low", "0.25", "")]


def test_a_run_that_copies_is_not_ranked_nor_is_a_score_that_is_too_large(tmp_path):
    warned = score("copies_l2", 0.2, better="", notes=["copying: 20 of 100 samples are nearer …"])
    scores = {"copied": [score(value=1.0, error=0.1), warned]}
    scores |= {name: [score(value=value, error=0.1)] for name, value in (("a", 7.0), ("b", 9.0))}
    runs = [write_run(tmp_path / name, *each, amplifier=n) for n, (name, each) in enumerate(scores.items())]
    made = table(runs, "fid")
    assert made.best("fid") == 1
    assert made.caption()[-1] == "amplifier=0: not ranked, as some samples are copies of training images."
    with pytest.raises(RunError, match="fid is 1e\\+300, which is no score"):
        table([write_run(tmp_path / "large", score(value=1e300))])
