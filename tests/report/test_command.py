"""`cswf report` writes pages, and replaces nothing that is not one."""

from __future__ import annotations

from cswf_core.report import is_report


def test_one_run_gets_its_own_page(cswf, make):
    folder = make()
    done = cswf("report", folder)
    assert (done.status, done.out) == (0, f"see {folder / 'report.html'}\n")
    assert is_report(folder / "report.html")
    assert cswf("report", folder).status == 0


def test_several_runs_get_one_page_in_the_current_folder(cswf, make, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = cswf("report", make("a"), make("b"))
    assert (done.status, done.out) == (0, "see report.html\n")
    assert is_report(tmp_path / "report.html")
    assert not (tmp_path / "a/report.html").exists()


def test_what_is_not_a_report_is_replaced_by_force_only(cswf, make, tmp_path):
    mine = tmp_path / "page.html"
    mine.write_text("mine")
    assert "is not a page of cswf report" in cswf.refusal("report", make("a"), make("b"), "--out", mine)
    assert mine.read_text() == "mine"
    assert cswf("report", tmp_path / "a", "--out", mine, "--force").status == 0
    assert is_report(mine)


def test_a_folder_that_is_no_run_is_a_sentence(cswf, tmp_path, make):
    good = make()
    for wrong in (tmp_path, tmp_path / "nowhere"):
        files = "it has none of run.json, recipe.yaml and metrics.json"
        assert (
            cswf.refusal("report", good, wrong)
            == f"{wrong} is not the folder of a run or an evaluation: {files}\n"
        )


def test_a_page_cannot_be_a_folder_or_lie_in_none(cswf, tmp_path, make):
    folder = make()
    assert "is a folder" in cswf("report", folder, "--out", tmp_path).err
    assert cswf("report", folder, "--out", tmp_path / "no/where.html").status == 2


def test_a_page_refers_to_the_samples_only_where_it_lies_beside_them(cswf, make, tmp_path):
    folder = make()
    cswf.output("report", folder)
    cswf.output("report", folder, "--out", tmp_path / "elsewhere.html")
    assert 'href="samples.npz"' in (folder / "report.html").read_text()
    assert 'href="samples.npz"' not in (tmp_path / "elsewhere.html").read_text()
